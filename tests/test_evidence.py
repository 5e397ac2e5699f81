"""Evidence: what a file contains, what is refused, and a report made of files alone."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest

import constructed
from constructed import CPU1, CPU2, Group
from parbench import files
from parbench.__main__ import main
from parbench.equivalence import certificate
from parbench.errors import ParbenchError
from parbench.plan import places
from parbench.reporting import render, report
from parbench.verdicts import evidence
from shown import pdf_text, squeezed
from workspace import Workspace

GROUPS = [group for group in constructed.usual_groups() if group.model != "resnet50"]


def measured(folder: Path, groups=None, change=lambda metrics: metrics, **study) -> Path:
    """Return a folder `results` in which the study `constructed` was run."""
    text = constructed.usual_study(**study)
    constructed.write_study(folder, text, GROUPS if groups is None else groups, change)
    certificate.write(folder / "results/certificates/host.json", "host", {}, [])
    return folder / "results"


def wrote(folder: Path, results: Path, partial=False) -> Path:
    return evidence.write(evidence.gather("constructed", results, partial), folder)


def change_plan(results: Path, **changes) -> None:
    path = results / "plan/constructed.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_file_holds_all_that_was_measured_and_gives_it_back(tmp_path):
    results = measured(tmp_path)
    path = wrote(tmp_path / "evidence", results)
    assert path.name == "constructed-constructed-x2-2030-01-04.json"
    made = evidence.read(path)
    runs = {
        file.parent.name: json.loads(file.read_text())
        for file in (results / "cells").glob("*/metrics.json")
    }
    assert evidence.runs(made, path) == runs
    assert made["plan"] == json.loads((results / "plan/constructed.json").read_text())
    assert [p["place"] for p in made["certificates"]] == ["host"]
    assert made["missing"] == []
    # Small: what cells share is stored once.
    assert len(made["environments"]) == 2  # one and two processes
    sizes = [sum(len(json.dumps(run)) for run in all_.values()) for all_ in (made["cells"], runs)]
    assert sizes[0] < 0.5 * sizes[1]


def test_a_pair_is_kept_with_the_environment_of_each_side(tmp_path):
    results = measured(tmp_path)
    sides = [constructed.cell_json(GROUPS[0], 0) | {"id": f"{n}-00000000"} for n in "ab"]
    kept = constructed.make_pair("x.pair.r0-00000000", sides)
    made = constructed.make_pair_metrics(kept)
    made["sides"][1]["environment"]["world_size"] = 2
    files.write_json(results / "cells" / kept["id"] / "metrics.json", made)
    pair = {"id": "x.pair-00000000", "model": "resnet18", "variant": "a", "baseline": "b"}
    pair |= {"sides": ["a", "b"], "variants": 1, "inference": False, "restarts": [0]}
    change_plan(results, pairs=[{**pair, "not_run": None, "cells": [kept["id"]]}])
    path = wrote(tmp_path / "kept", results)
    assert evidence.runs(evidence.read(path), path)[kept["id"]] == made


def test_the_same_results_give_the_same_bytes_and_others_never_replace_them(tmp_path):
    results = measured(tmp_path)
    path = wrote(tmp_path / "evidence", results)
    before = path.read_bytes()
    assert wrote(tmp_path / "evidence", results).read_bytes() == before
    measured(tmp_path, change=lambda metrics: {**metrics, "startup_seconds": 9.0})
    with pytest.raises(ParbenchError, match="holds other evidence of that machine and day; move"):
        wrote(tmp_path / "evidence", results)
    assert path.read_bytes() == before


def test_a_partial_study_is_refused_unless_it_is_said_and_named(tmp_path):
    results = measured(tmp_path, published=None)
    eager, swin = GROUPS[0], GROUPS[-1]
    lost = [eager.cell_id(1), *swin.cells()]
    for cell in lost:
        (results / "cells" / cell / "metrics.json").unlink()
    with pytest.raises(ParbenchError, match=r"5 of 37 cells are not measured, such as .*--partial"):
        evidence.gather("constructed", results)
    path = wrote(tmp_path / "evidence", results, partial=True)
    made = evidence.read(path)
    assert made["missing"] == lost
    groups = {group.id: group for group in evidence.plan(made).groups}
    assert groups[eager.id].seeds == [0, 2, 3]
    assert groups[eager.id].note == "1 of 4 cells not measured"
    assert groups[swin.id].not_run == "not measured"
    out = evidence.unpack(path, tmp_path / "out")
    html = render.render_html(collected(out))
    assert f"Partial evidence: {path.name} lacks 5 cells of its study." in html
    assert "not finished" not in html
    assert "not run" in html
    assert "1 of 4 cells not measured" in html


@pytest.mark.parametrize("content", ["[]", "{}", '{"groups": []}'])
def test_a_plan_of_another_shape_is_named(tmp_path, content):
    results = measured(tmp_path)
    path = results / "plan/constructed.json"
    path.write_text(content)
    with pytest.raises(ParbenchError) as refused:
        evidence.gather("constructed", results)
    assert str(refused.value).startswith(f"{path}: not a study's plan: without ")
    assert str(refused.value).endswith("results/plan/<study>.json, which every run writes")


def test_no_path_and_no_name_of_a_host_leaves_the_machine(tmp_path, monkeypatch):
    host = "node17"
    monkeypatch.setattr(socket, "gethostname", lambda: f"{host}.example.org")
    reason = f"killed on {host}.example.org: see /var/tmp/some one/log.txt and samples/s"
    groups = [Group("swin", "eager", CPU1, status="out_of_memory", reason=reason)]
    groups.append(Group("swin", "ddp", CPU2, not_run=f"needs what {host} lacks"))
    results = measured(tmp_path, groups)
    words = ["--configfile", "/home/somebody/deep/mine.yaml", "--config", "studies=[constructed]"]
    words += ['datasets={"c":{"path":"/data/x/c.tar.gz","urls":["file:///home/me/c.tar.gz"]}}']
    change_plan(results, arguments=words)
    made = evidence.gather("constructed", results)
    text = json.dumps(made)
    for word in (host, "somebody", "/home", "/var", "/data"):
        assert word not in text
    assert made["plan"]["arguments"][1] == "mine.yaml"
    assert '"path":"c.tar.gz","urls":["c.tar.gz"]' in made["plan"]["arguments"][-1]
    assert made["plan"]["groups"][1]["not_run"] == "needs what this machine lacks"
    assert "samples/s" in next(iter(made["cells"].values()))["reason"]


def test_studies_are_those_of_the_last_report_unless_they_are_named(tmp_path, capsys, monkeypatch):
    """A study that cannot run here is only noted."""
    results = measured(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(places, "ROOT", tmp_path)
    with pytest.raises(ParbenchError, match=r"report.json: no such file; make the report first"):
        main(["evidence", "write"])
    plan = json.loads((results / "plan/constructed.json").read_text())
    for group in plan["groups"]:
        group["not_run"] = "needs 2 GPUs"
    (results / "plan/elsewhere.json").write_text(json.dumps(plan))
    studies = [{"name": name} for name in ("constructed", "elsewhere")]
    (results / "report.json").write_text(json.dumps({"studies": studies}))
    main(["evidence", "write"])
    told = capsys.readouterr()
    assert "note: elsewhere: none of its cells runs on this machine" in told.err
    assert "constructed-constructed-x2-2030-01-04.json  37 cells" in told.out
    shutil.rmtree(results / "cells" / plan["groups"][0]["cells"][0])
    with pytest.raises(ParbenchError, match=r"constructed.json: 1 of 37 cells are not measured"):
        main(["evidence", "write", "papers/constructed.yaml"])


def test_a_file_that_was_changed_is_refused(tmp_path):
    path = wrote(tmp_path / "evidence", measured(tmp_path))
    whole = json.loads(path.read_text())

    def refused(match, **changes):
        content = {**whole, **changes}
        content["digest"] = evidence.files.digest(
            {key: value for key, value in content.items() if key != "digest"}
        )
        path.write_text(json.dumps(content if "digest" not in changes else {**whole, **changes}))
        with pytest.raises(ParbenchError, match=match) as caught:
            evidence.unpack(path, tmp_path / "a/b/c/d/out")
        assert "delete" not in str(caught.value)  # it may not be measured again

    refused("content does not match its digest, .*; get the file again", digest="0" * 64)
    refused("schema_version: 1 was expected", schema_version=2)
    refused("'log' was unexpected", log=[])
    name, cell = next(iter(whole["cells"].items()))
    plan, group = whole["plan"], whole["plan"]["groups"][0]
    escaped = "../../../../escaped"
    refused(rf"\$.cells: '{escaped}' does not match", cells={escaped: cell})
    refused(rf"missing\[0\]: '{escaped}' does not match", missing=[escaped])
    proof = whole["certificates"][0]
    refused(r"certificates\[0\].place: '\.\.' does", certificates=[{**proof, "place": ".."}])
    group = {**group, "cells": [escaped]}
    refused(rf"plan: groups.0.cells.0: value '{escaped}' should", plan={**plan, "groups": [group]})
    study = {**plan["study"], "name": escaped}
    refused(
        rf"plan: study.name: value '{escaped}' should be the name", plan={**plan, "study": study}
    )
    refused("plan: groups: value 3 should be a valid list", plan={**plan, "groups": 3})
    refused(f"cell {name}: incomplete .*; get the file", cells={name: {**cell, "settings": 99}})
    refused(f"cell {name}: incomplete", code={})
    refused(
        f"cell {name}: cell: not a cell of this version .*; get the file",
        settings=[{}] * len(whole["settings"]),
    )
    assert not (tmp_path / "escaped").exists()
    odd = path.with_name("...json")  # whose folder would be ..
    path.rename(odd)
    with pytest.raises(ParbenchError, match=r"the folder '\.\.' would be named after the file"):
        evidence.unpack(odd, tmp_path / "a/b/c/d/out")
    odd.rename(path)
    refused(
        rf"cell {name}: test_accuracy: value 7 should be less",
        cells={name: {**cell, "test_accuracy": 7}},
    )


def collected(*outs: Path) -> dict:
    """Return report.json of unpacked evidence, as rules/evidence.smk makes it."""
    plans, made = [], []
    for out in outs:
        plans.append(out / "plan" / f"{out.name}.json")
        made.append(out / "tables" / f"{out.name}.csv")
        proofs = sorted((out / "certificates").glob("*.json"))
        constructed.make_table(plans[-1], out / "cells", made[-1], "--certificate", *proofs)
    return report.collect(plans, made, outs[0] / "nowhere")


def test_one_report_holds_a_study_of_two_machines(tmp_path):
    """The same cells, measured twice: each number is shown with its own machine."""
    groups = [Group("resnet18", "eager", CPU1), Group("resnet18", "ddp", CPU2, 7.0)]
    (tmp_path / "published.csv").write_text(constructed.published_csv({"published": None}, []))
    outs = []
    for name, cpu, factor in (("one", "First CPU", 1.0), ("two", "Second <b> CPU", 3.0)):

        def change(metrics, cpu=cpu, factor=factor):
            metrics["train_seconds"] *= factor
            metrics["environment"]["machine"] |= {"cpu": cpu, "fingerprint": cpu[:3] * 4}
            return metrics

        path = wrote(
            tmp_path / "evidence", measured(tmp_path / name, groups, change, published=None)
        )
        outs.append(evidence.unpack(path, tmp_path / "out"))
    data = collected(*outs)
    html = render.render_html(data)
    assert "Rendered from 2 files of evidence; nothing was trained for it." in html
    for words in ("First CPU, 2 cores", "Second &lt;b&gt; CPU, 2 cores", "0.200 ±", "0.600 ±"):
        assert words in html
    for out in outs:
        assert f"{out.name}.json" in html
    cell = groups[0].cell_id(0)
    assert html.count(f'id="c-constructed-first-x2-2030-01-04-{cell}"') == 1
    assert f"snakemake results/cells/{cell}/metrics.json --config" in html
    assert "Shared with another study" not in html
    pdf = squeezed(pdf_text(render.render_pdf(data)))
    assert squeezed(data["evidence"]["sentence"]) in pdf
    assert "Second<b>CPU" in pdf


def test_the_same_cells_on_two_machines_stand_side_by_side(tmp_path):
    (tmp_path / "published.csv").write_text(constructed.published_csv({"published": None}, []))
    outs = []
    for name, ratios, shift in (
        ("one", (1.5, 1.51, 1.5, 1.5), 0.0),
        ("two", (0.8, 0.81, 0.8, 0.8), 0.02),
    ):

        def change(metrics, shift=shift):
            metrics["test_accuracy"] += shift
            if metrics["cell"]["seed"] == 0:
                metrics["weights_sha256"] = "0f" * 32 if shift else "1f" * 32
            return metrics

        on = {"machine": {"cpu": name, "fingerprint": name * 4}}
        groups = [Group("resnet18", "eager", CPU1, **on)]
        groups += [Group("resnet18", "ddp", CPU2, turns=ratios, **on)]
        groups += [Group(f"net-{name}", "eager", CPU1, **on)]  # only there
        results = measured(tmp_path / name, groups, change, published=None)
        outs.append(evidence.unpack(wrote(tmp_path / "evidence", results), tmp_path / "out"))
    assert collected(outs[0])["machines"] is None
    data = collected(*outs)
    rows = [[cell["text"] for cell in row] for row in data["machines"]["rows"]]
    names = [out.name for out in outs]
    trained = ["3 of 4", "2.00", "higher on B"]
    eager, ddp = rows
    assert eager == [*names, "resnet18", "eager", *trained, *["–"] * 5]
    assert ddp == [*names, "resnet18", "ddp", *trained, "eager", "1.50", ddp[9], "0.80", ddp[11]]
    assert (ddp[9], ddp[11]) == ("1.49 to 1.52", "0.79 to 0.82")
    assert 'id="t-machines"' in render.render_html(data)
    pdf = squeezed(pdf_text(render.render_pdf(data)))
    assert squeezed(data["machines"]["title"]) in pdf


def test_the_workflow_renders_evidence_without_training(tmp_path):
    work = Workspace(tmp_path / "a work folder")
    none = work.snakemake("-n", "reports/evidence.html", check=False)
    assert "reports/evidence has no file of evidence" in none.stdout + none.stderr
    groups = [Group("resnet18", "eager", CPU1, seeds=(0,))]
    results = measured(tmp_path / "elsewhere", groups, published=None)
    path = wrote(work.folder / "reports/evidence", results)
    work.snakemake("reports/evidence.html", "reports/evidence.pdf")
    html = (work.folder / "reports/evidence.html").read_text()
    assert path.name in html
    assert "Rendered from 1 file of evidence" in html
    assert (work.folder / "reports/evidence.pdf").read_bytes().startswith(b"%PDF")
    assert not (work.folder / "results/cells").exists() or not list(
        (work.folder / "results/cells").glob("*/metrics.json")
    )
    assert work.jobs("reports/evidence.html") == {}
