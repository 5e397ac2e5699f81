"""What a certificate says of a cell, and where it is shown: table, report, provenance."""

from __future__ import annotations

import json

import pytest

import constructed
from parbench.equivalence import certificate
from parbench.equivalence.certificate import DIFFERS, EQUAL
from parbench.errors import ParbenchError
from parbench.plan import config_files, expansion
from parbench.runs import records
from shown import collect, render

CODE = "c0de" * 16  # of constructed runs


def row(arithmetic="float64", batch_norm="frozen", error=1e-12, **changes):
    return {
        "model": "resnet18",
        "strategy": "ddp",
        "options": {"bucket_cap_mb": 25},
        "devices": 2,
        "arithmetic": arithmetic,
        "batch_norm": batch_norm,
        "code": CODE,
        "quantity": "gradients",
        "error": error,
        "bound": 1e-10,
        "verdict": EQUAL if error <= 1e-10 else DIFFERS,
        "reason": None,
    } | changes


def run(precision="fp32", batch_norm="local", options=None, devices=2, device="cpu", **environment):
    cell = constructed.make_cell(
        "x",
        "resnet18",
        "ddp",
        constructed.make_hardware(device, devices),
        options={"bucket_cap_mb": 25} if options is None else options,
        training=constructed.TRAINING | {"precision": precision, "batch_norm": batch_norm},
    )
    return records.of(constructed.make_metrics(cell, environment=environment), "a run")


WHOLE = [row(), row("float32"), row(batch_norm="synchronized"), row(batch_norm="local", error=0)]


def certificates(tmp_path, rows, place=certificate.HOST):
    path = tmp_path / f"{place}.json"
    certificate.write(path, place, {}, rows)
    return certificate.Certificates([path])


@pytest.mark.parametrize(
    ("changes", "rows", "problem"),
    [
        ({}, WHOLE, None),
        ({"batch_norm": "synchronized"}, WHOLE, None),
        ({"precision": "bf16"}, [*WHOLE, row("bfloat16")], None),
        ({"precision": "bf16"}, WHOLE, "bfloat16 is not"),
        ({"precision": "fp16"}, WHOLE, "precision fp16 is not"),
        ({"devices": 3}, WHOLE, "this combination"),
        ({"device": "cuda"}, WHOLE, "model, strategy, options and GPUs is not"),
        ({"device": "cuda"}, [row(device="cuda"), row("float32", device="cuda")], None),
        ({"options": {"bucket_cap_mb": 1}}, WHOLE, "this combination"),
        ({"options": {"hook": "fp16"}}, WHOLE, "gradients are rounded to float16"),
        ({"code_digest": "0" * 64}, WHOLE, "its code is another"),
        ({"image": "torch-current-0"}, WHOLE, "nothing of torch-current-0 is"),
        ({}, [row(error=3e-4), row("float32")], "gradients differs by 3.0e-04 from eager's"),
        ({}, [row(error=3e-4), row("float32")], "bound 1.0e-10"),
        (
            {"batch_norm": "synchronized"},
            [row(), row("float32"), row(batch_norm="synchronized", error=1.0)],
            "BatchNorm synchronized",
        ),
        (
            {"batch_norm": "local"},
            [row(), row("float32"), row(batch_norm="local", error=1.0)],
            "BatchNorm local",
        ),
    ],
)
def test_a_cell_is_certified_or_it_is_said_why_not(tmp_path, changes, rows, problem):
    found = certificates(tmp_path, rows).problem(*run(**changes).trained)
    assert found is None if problem is None else problem in found


def test_what_predicts_is_certified_like_what_trains_where_it_could_train():
    """Its pairs rest on the same blocks, compiled, for example."""
    config = config_files.read([], {"studies": ["torch-compile-cpu"], "deployment": "host"})
    deployment = config.resolved_deployment()
    plans = expansion.plan(config, deployment, why_unavailable=lambda group, cell: None).studies
    plan = plans["torch-compile-cpu"].model_dump()
    compiled = [each for each in plan["groups"] if each["training"]["compile"] == "default"]
    assert compiled
    assert all(group["trained_by"] for group in compiled)
    entries = certificate.required(plan["groups"], certificate.HOST)
    assert {entry["tuned"].get("compile") for entry in entries} == {None, "default"}
    spark = [group | {"strategy": "spark", "options": {}} for group in plan["groups"]]
    assert not certificate.required(spark, certificate.HOST)


@pytest.mark.parametrize(
    ("digest", "problem"),
    [
        (CODE, None),
        ("0" * 64, "its code is another"),
        (None, "they do not record the code of each"),
    ],
)
def test_a_side_of_a_pair_is_certified_like_a_cell(tmp_path, digest, problem):
    cells = (run().cell.json(), constructed.make_cell("e", "resnet18", "eager", constructed.CPU2))
    environment = {"code_digest": "5" * 64, "side_digest": digest}  # of both sides, of one
    pair = constructed.make_pair("pair", list(cells))
    value = constructed.make_pair_metrics(pair, environment=environment, seconds=(1.0, 2.0))
    ddp, _ = records.of(value, "a pair").trained
    found = certificates(tmp_path, WHOLE).problem(ddp)
    assert found is None if problem is None else problem in found


def test_a_certificate_that_was_changed_is_refused(tmp_path):
    certificates(tmp_path, WHOLE)
    path = tmp_path / "host.json"
    content = json.loads(path.read_text())
    content["rows"][0]["error"] = 0.0
    path.write_text(json.dumps(content))
    with pytest.raises(ParbenchError, match="changed or damaged; delete it"):
        certificate.read(path)
    path.write_text("[]")
    with pytest.raises(ParbenchError, match="not a certificate of this version"):
        certificate.read(path)


def test_table_and_report_mark_what_is_not_certified(tmp_path):
    study = constructed.usual_study(tables=constructed.usual_study()["tables"][1:])
    groups = [g for g in constructed.usual_groups() if g.model == "resnet18" and not g.not_run]
    paths = constructed.write_study(tmp_path, study, groups)
    rows = [row(options={}), row("float32", options={})]  # only of ddp
    certificates(tmp_path, rows)
    proof = tmp_path / "host.json"
    constructed.make_table(paths["plan"], paths["cells"], paths["table"], "--certificate", proof)
    reasons = constructed.read_table(paths["table"]).groupby("strategy")["reason"].unique()
    assert all("⚠ not certified: this combination" in each for each in reasons["horovod"])
    assert not any("certified" in each for each in reasons["ddp"])

    data = collect(paths, certified=[proof])
    said = {
        dict(map(tuple, cell["facts"]))["equivalence"].split(":")[0]: group["title"]
        for group in data["groups"]
        for cell in group["cells"]
    }
    assert said["equal to eager training"] == "resnet18, ddp, 2 CPU cores"
    assert "⚠ not certified" in said
    digest = certificate.read(proof)["digest"]
    assert data["equivalence"]["digests"] == [["C1", f"host: {digest}"]]
    html, pdf = render(data)
    assert digest in html
    assert "⚠ not certified" in html
    assert pdf.startswith(b"%PDF")
