"""What a user types and gets must not change while the code behind it changes.

Programs are run as a user or a rule runs them, and the numbers, ids and verdicts that they print
and write are compared with the files in tests/expected; other tests hold the sentences.
Nothing of the project is imported. When behavior changes on purpose, rewrite those files, and read
the difference before you commit it:

    REWRITE_EXPECTED=1 python -m pytest tests/test_expected.py
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pypdf
import pytest
import yaml

from workspace import ROOT, Workspace

GOLDEN = Path(__file__).parent / "expected"  # of the checkout, where it is rewritten
REWRITE = "REWRITE_EXPECTED" in os.environ
STUDIES = sorted(path.stem for path in (ROOT / "studies").glob("*.yaml"))
EVIDENCE = sorted(path.stem for path in (ROOT / "reports/evidence").glob("*.json"))


def hold(name: str, text: str) -> None:
    """Compare ``text`` with tests/expected/<name>, line by line, or write it there."""
    path = GOLDEN / name
    if REWRITE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()


def as_lines(value: Mapping[str, Any]) -> str:
    """Return ``value`` as JSON, one line per entry of its parts, for readable diffs."""
    parts = []
    for key, part in value.items():
        text = json.dumps(part, sort_keys=True)
        if isinstance(part, dict):
            entries = (f" {json.dumps(k)}: {json.dumps(part[k], sort_keys=True)}" for k in part)
            text = "{\n" + ",\n".join(entries) + "\n}"
        parts.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


# --- the plan of every study ----------------------------------------------------------------------

# Two cores and one A100, so that plans do not depend on the machine that tests.
PLACE = "deployment: host\navailable: {cpu: 2, cuda: {A100: 1}}\n"
# Derived values only: settings and options are the study's, and IDs of cells have their digests.
DERIVED = ("variant", "members", "baseline", "published", "pretrained")
TOLD = ("differs", "scaled", "not_run")  # in sentences, of which only their being there is held
# Of a study and of its tables: sentences, and columns, which are the study's.
PROSE = ("title", "description", "citation", "caption", "metrics")


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Return the results of a work folder in which all studies are planned and none is trained.

    Packages that this machine may lack are faked: planning only looks for them.
    """
    work = Workspace(tmp_path_factory.mktemp("plan") / "work")
    for name in ("deepspeed", "pyspark", "ray", "transformers"):
        (work.folder / "packages" / name).mkdir(parents=True)
        (work.folder / "packages" / name / "__init__.py").touch()
    (work.folder / "mine.yaml").write_text(f"{PLACE}studies: [{', '.join(STUDIES)}]\n")
    java = work.folder / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"'\n")
    java.chmod(0o755)
    there = {"PYTHONPATH": str(work.folder / "packages"), "JAVA_HOME": str(work.folder / "java")}
    work.snakemake("results/data/digits/digest.json", "--configfile", "mine.yaml", **there)
    return work.folder / "results"


def derived(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a plan derives for a group of cells, without sentences and empty values."""
    kept = {key: group[key] for key in DERIVED if group.get(key)}
    if "members" not in group:
        kept["cells"] = " ".join(cell.rpartition("-")[2] for cell in group["cells"])
    # Horovod may not be built here.
    needless = (group["not_run"] or "").startswith("Horovod ")
    says = [key for key in TOLD if group.get(key) and not (key == "not_run" and needless)]
    work = {key: value for key, value in group["work"].items() if not isinstance(value, str)}
    lists = {"says": says, "not_comparable": sorted(group.get("comparable", ()))}
    return {**kept, "work": work, **{key: names for key, names in lists.items() if names}}


def without_prose(value: Any) -> Any:
    """Return ``value`` without the parts that a key of PROSE names, however deep."""
    if isinstance(value, dict):
        return {key: without_prose(part) for key, part in value.items() if key not in PROSE}
    return list(map(without_prose, value)) if isinstance(value, list) else value


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_is_planned_as_ever(planned, study):
    plan = json.loads((planned / "plan" / f"{study}.json").read_text())
    about = plan["study"]
    cells = [
        json.loads((planned / "cells" / cell / "cell.json").read_text())
        for group in plan["groups"]
        if group["not_run"] is None
        for cell in group["cells"]
        if group["strategy"] != "horovod"
    ]
    reduced = {
        "study": {key: about[key] for key in ("settings", "assumed", "tolerance", "published")},
        "study_digest": digest(without_prose(about)),
        "groups": {group["id"]: derived(group) for group in plan["groups"]},
        "together": {group["id"]: derived(group) for group in plan["together"]},
        "cells_digest": digest(cells),
        "arguments": plan["arguments"],
    }
    hold(f"plan/{study}.json", as_lines(reduced))


def test_a_cell_of_each_strategy_is_as_ever(planned):
    found: dict[str, Any] = {}
    for path in sorted(planned.glob("cells/*/cell.json")):
        cell = json.loads(path.read_text())
        if "strategy" in cell:  # not a pair
            found.setdefault(cell["strategy"]["name"], cell)
    hold("cells.json", as_lines({key: found[key] for key in sorted(found) if key != "horovod"}))


# --- weights that training gives ------------------------------------------------------------------

# tests/test_train.py holds those of every other strategy against eager training's. Another torch,
# processor or instruction set rounds sums differently.
LOSS_TOLERANCE = 1e-3  # relative
MEASURED = ("train_loss", "test_loss", "test_accuracy")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return metrics.json of the cells of tests/expected/study.yaml, by strategy and model."""
    work = Workspace(tmp_path_factory.mktemp("weights") / "work")
    shutil.copy(GOLDEN / "study.yaml", work.folder / "studies/expected.yaml")
    (work.folder / "mine.yaml").write_text("studies: [expected]\navailable: {cpu: 2}\n")
    listed = work.parbench("cells", "--configfile", "mine.yaml").stdout
    cells = re.findall(r"^(\S+) +missing$", listed, re.M)
    targets = [f"results/cells/{cell}/metrics.json" for cell in cells]
    work.snakemake(*targets, "--configfile", "mine.yaml")
    paths = sorted(work.folder.glob("results/cells/*/metrics.json"))
    runs = [json.loads(path.read_text()) for path in paths]
    return {f"{r['cell']['strategy']['name']} of {r['cell']['model']['name']}": r for r in runs}


def test_training_gives_the_same_weights(trained):
    """Equal to the last bit where torch and processor are those of the file, else nearly so."""
    first = trained["eager of swin"]["environment"]
    flags = Path("/proc/cpuinfo").read_text().split()
    place = {
        "torch": first["packages"]["torch"],
        "cpu": first["machine"]["cpu"],
        "instructions": [name for name in ("avx2", "avx512f", "avx512_bf16") if name in flags],
    }
    found = {
        name: {
            "history": [[epoch[key] for key in MEASURED] for epoch in run["history"]],
            "test_accuracy": run["test_accuracy"],
            "weights_sha256": run["weights_sha256"],
        }
        for name, run in trained.items()
    }
    if REWRITE:
        hold("weights.json", as_lines({"place": place, "cells": found}))
    held = json.loads((GOLDEN / "weights.json").read_text())
    assert found.keys() == held["cells"].keys()
    if place == held["place"]:
        assert found == held["cells"]
    for name, cell in found.items():
        for ours, theirs in zip(cell["history"], held["cells"][name]["history"], strict=True):
            assert ours[:2] == pytest.approx(theirs[:2], rel=LOSS_TOLERANCE), name


# --- tables, verdicts and claims of the evidence that is kept -------------------------------------

COLUMNS = "metric n_seeds mean std ci_low ci_high published ratio verdict reading".split()


@pytest.fixture(scope="module")
def told_again(tmp_path_factory):
    """Make tables and the report from reports/evidence; return their folder."""
    work = Workspace(tmp_path_factory.mktemp("evidence") / "work")
    published = sorted(str(path) for path in (ROOT / "studies/published").glob("*.csv"))

    def table(name: str) -> tuple[str, str]:
        home = f"results/evidence/{name}"
        plan, out = f"{home}/plan/{name}.json", f"{home}/tables/{name}.csv"
        source = str(ROOT / "reports/evidence" / f"{name}.json")
        work.parbench("evidence", "unpack", source, "--folder", "results/evidence")
        certificates = map(str, sorted((work.folder / home / "certificates").glob("*.json")))
        words = ["--plan", plan, "--cells", f"{home}/cells", "--published", *published]
        work.parbench("tables", *words, "--certificate", *certificates, "--out", out)
        return plan, out

    with ThreadPoolExecutor(2) as pool:
        plans, tables = zip(*pool.map(table, EVIDENCE), strict=True)
    words = ["--plan", *plans, "--table", *tables, "--cells", "results/cells", "--certificate"]
    words += ["--claims", "studies/published/claims.yaml", "--published", *published]
    data = "results/evidence/report.json"
    work.parbench("collect", *words, "--out", data)
    work.parbench("render", "pdf", "--data", data, "--out", "results/evidence/report.pdf")
    return work.folder / "results/evidence"


@pytest.mark.parametrize("name", EVIDENCE)
def test_a_table_of_evidence_has_the_same_numbers(told_again, name):
    lines, group = [",".join(["group", *COLUMNS])], ""
    held = metrics_held()
    with open(told_again / name / "tables" / f"{name}.csv", newline="") as file:
        for row in csv.DictReader(file):
            if row["metric"] not in held and ":" not in row["metric"]:
                continue  # a metric that was added later
            row["reading"] = row["reading"].partition(":")[0]
            shown = row["group"] if row["group"] != group else ""
            lines.append(",".join([shown, *(rounded(row[column]) for column in COLUMNS)]))
            group = row["group"]
    hold(f"tables/{name.partition('-amd')[0]}.csv", "\n".join(lines) + "\n")


def metrics_held() -> list[str]:
    """Return the metrics whose rows are held: those that studies could name when the tables were
    rewritten. A row of an operator, whose metric has a colon, is always held."""
    path = GOLDEN / "metrics.txt"
    if REWRITE:
        schema = yaml.safe_load((ROOT / "rules/schemas/study.schema.yaml").read_text())
        metrics = schema["$defs"]["Table"]["properties"]["metrics"]["items"]["enum"]
        path.write_text("".join(f"{name}\n" for name in metrics))
    return path.read_text().splitlines()


def rounded(value: Any) -> str:
    """Return a number to 12 digits; other values as they are, and nothing for None."""
    if re.fullmatch(r"-?[\d.]+(e-?\d+)?", str(value)):
        return f"{float(value):.12g}"
    return "" if value is None else str(value)


def test_claims_of_evidence_have_the_same_verdicts_and_numbers(told_again):
    lines = []
    for claim in json.loads((told_again / "claims.json").read_text())["claims"]:
        firm = "" if claim["weakness"] else "firm"
        lines.append([claim["name"], claim["study"], claim["grade"], claim["verdict"], firm])
        for part in claim["parts"]:
            answers = [part[key] for key in ("direction", "size", "against_source")]
            lines.append(["part", part["metric"], part["op"], *answers])
            lines += [["of", *numbers(each)] for each in part["comparisons"]]
    hold("claims.csv", "".join(f"{','.join(map(rounded, line))}\n" for line in lines))


def numbers(comparison: Mapping[str, Any]) -> list[Any]:
    """Return the verdicts and numbers of a comparison, which end with each seed's or restart's."""
    published, measured = comparison["published"], comparison["measured"]
    found = [comparison[key] for key in ("direction", "size", "bound")]
    found.append(" to ".join(map(rounded, published)) if isinstance(published, list) else published)
    if isinstance(measured, dict):
        found += [measured[key] for key in ("of", "mean", "low", "high")]
        return found + list(measured["values"].values())
    return [*found, measured]


def test_the_page_of_what_was_measured_is_made_from_the_evidence(told_again):
    """docs/measured.md holds the claims and the comparisons in turns of each file."""
    page, folder = Path("docs/measured.md"), told_again.parents[1]
    (folder / "docs").mkdir()
    for name in ("studies.md", "verdicts.md", "architecture.md"):
        shutil.copy(ROOT / "docs" / name, folder / "docs")
    command = [sys.executable, "-m", "parbench.reporting.pages"]
    env = {**os.environ, "PYTHONPATH": str(folder / "scripts")}
    subprocess.run(command, cwd=folder, env=env, check=True)
    if REWRITE:
        shutil.copy(folder / page, GOLDEN.parents[1] / page)
    made = (folder / page).read_text(encoding="utf-8")
    assert made == (GOLDEN.parents[1] / page).read_text(encoding="utf-8")


def test_all_evidence_is_a_report_of_few_pages(told_again):
    """None of its numbers is left out, as test_report.py shows. The eight files of the sources'
    studies, with every restart of their pairs, take 46 pages, and every other study, of curves, at
    most six."""
    others = len(EVIDENCE) - 8
    assert len(pypdf.PdfReader(told_again / "report.pdf").pages) <= 46 + 6 * others


# --- the README's commands ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Return a copy of the project in which nothing has been run, for two cores."""
    work = Workspace(tmp_path_factory.mktemp("readme") / "work")
    work.edit("config.yaml", "available: auto", "available: {cpu: 2}")
    return work


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("cells", r"swin.horovod.cpu2.s0-\w{8} +missing\n(.*\n)*\n39 cells: "),
        ("why swin.eager.cpu1.s0", "would run because:\n  - it has not been train"),
        ("command vit.ddp.cpu2.s0", r"scripts/bin/parbench launch .*vit.ddp.cpu2.s0-\w{8}"),
        ("images list", r"(?m)^torch-current-\w{12} "),
        ("doctor", r"(?m)^Python +ok "),
        ("-m snakemake -n --quiet host", r"(?m)^dataset +1\ntrain +\d\d\ntable +1\nreport +1$"),
    ],
    ids=lambda value: value if re.match("[-a-z]", value) else "",
)
def test_a_command_of_the_readme_says_what_it_should(checkout, command, says):
    run = checkout.run if "snakemake" in command else checkout.parbench
    done = run(*command.split())
    assert re.search(says, done.stdout + done.stderr)


def test_cells_are_listed_in_the_project_folder_alone(checkout):
    command = [sys.executable, "../scripts/bin/parbench", "cells"]  # where there are no results
    done = subprocess.run(command, cwd=checkout.folder / "studies", capture_output=True, text=True)
    assert done.returncode == 2
    assert f"error: run parbench cells in the project's folder {checkout.folder} " in done.stderr


# In what the audit prints: a source; what a finding is and how sure; its lines; counts.
PRINTED = r"(?m)^([\w-]+)$|^(  - .*? \(\w+\)):|\(lines? ([^)]+)\)$|^(\d.*)$"


def test_the_audit_of_published_numbers_finds_the_same(checkout):
    lines = []
    for name in ("published_results", "kamoji-images"):
        said = checkout.parbench("audit", f"studies/published/{name}.csv").stdout
        for source, finding, places, counts in re.findall(PRINTED, said):
            numbers = re.findall(r"\d+", places or counts)
            lines.append(source or finding or f"    {' '.join(numbers)}")
    hold("audit.txt", "\n".join(lines) + "\n")
