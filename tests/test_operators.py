"""The operator profile of a cell, a few steps instead of epochs, and inference beside training."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import constructed
from parbench import strategies
from parbench.cell import Cell
from parbench.errors import ParbenchError
from parbench.measure import metrics_json, scores
from parbench.measure.metrics import METRICS, operator_metric
from parbench.measure.profiling import operators
from parbench.plan import config, expansion, places
from parbench.reporting import report
from parbench.training import train
from parbench.training.progress import Heartbeat
from parbench.verdicts import tables
from training import cell

SMALL = {"train_samples": 64, "test_samples": 33, "global_batch": 16, "epochs": 1}


def trained(folder, data, **changes) -> dict:
    """metrics.json of a small cell, trained in this process."""
    value = cell(**{**SMALL, **changes})
    strategy = strategies.of(value)
    out = folder / "metrics.json"
    train.train(value, data, out, strategy, Heartbeat(0))
    return metrics_json.read(out)


@pytest.fixture(scope="module")
def profiled(digits, tmp_path_factory) -> dict:
    return trained(
        tmp_path_factory.mktemp("profiled"), digits, profile="operators", evaluation_batch=8
    )


def test_operators_of_training_and_of_inference(profiled):
    training, inference = profiled["profile"]["training"], profiled["profile"]["inference"]
    assert profiled["profile"]["kind"] == "operators"
    assert (training["steps"], inference["steps"]) == (4, 5)  # all of the epoch; the first batches
    trained_by = {each["name"]: each for each in training["operators"]}
    tested_by = {each["name"]: each for each in inference["operators"]}
    assert trained_by["Optimizer.step#SGD.step"]["calls"] == 4
    assert not any("Backward" in name or "Optimizer" in name for name in tested_by)
    # Each forward pass has one call a linear layer; a training step, its gradients beside.
    assert trained_by["aten::addmm"]["calls"] / 4 == tested_by["aten::addmm"]["calls"] / 5
    for part in (training, inference):
        own = [each["cpu_self_seconds"] for each in part["operators"]]
        assert own == sorted(own, reverse=True)
        assert len(own) <= operators.KEPT
        assert 0.7 * part["cpu_self_seconds"] < sum(own) <= part["cpu_self_seconds"] * 1.000001
        assert part["device_self_seconds"] is None
        assert all(e["cpu_self_seconds"] <= e["cpu_total_seconds"] for e in part["operators"])


def test_operators_of_training_alone_stand_beside_published_ones(digits, tmp_path):
    run = trained(tmp_path, digits, profile="training_operators")
    assert run["profile"]["inference"] is None
    training = run["profile"]["training"]
    found = {each["name"]: each for each in training["operators"]}
    assert "Optimizer.step#SGD.step" in found
    total = METRICS["profile_self_seconds"].read(run)
    assert total == training["cpu_self_seconds"]
    own = operator_metric("operator_self_seconds:aten::addmm").read(run)
    assert own == found["aten::addmm"]["cpu_self_seconds"]


class Event:
    """What torch.profiler tells of an operator or, of kind CUDA, of a kernel."""

    def __init__(self, key, kind, cpu, device, annotation=False):
        self.key, self.count, self.is_user_annotation = key, 2, annotation
        self.device_type = type("Kind", (), {"name": kind})
        self.self_cpu_time_total, self.cpu_time_total = cpu, 2 * cpu
        self.self_device_time_total, self.device_time_total = device, device


def test_kernels_count_once_with_the_operator_that_started_them():
    found = operators.summary(
        [
            Event("aten::addmm", "CPU", 3e6, 8e6),
            Event("aten::view", "CPU", 1e6, 0),
            Event("sgemm_kernel", "CUDA", 0, 8e6),
            Event("Optimizer.step", "CUDA", 0, 9e6, annotation=True),
        ],
        on_accelerator=True,
    )
    assert (found["cpu_self_seconds"], found["device_self_seconds"]) == (4, 8)
    assert [each["name"] for each in found["operators"]] == ["aten::addmm", "aten::view"]
    assert found["operators"][0]["device_self_seconds"] == 8


def test_an_instrument_changes_nothing_that_is_learned(profiled, digits, tmp_path):
    """Its checkpoint keeps what it has found."""
    plain = trained(tmp_path, digits, evaluation_batch=8)
    assert plain["weights_sha256"] == profiled["weights_sha256"]
    assert plain["profile"] is None
    assert plain["inference"]["samples"] == 33
    assert 0 < plain["inference"]["input_seconds"] < plain["inference"]["seconds"]


def test_a_few_steps_measure_speed_and_no_accuracy(digits, tmp_path):
    run = trained(tmp_path, digits, steps=2, evaluation_batch=8, epochs=2)
    assert run["steps_per_epoch"] == 2
    assert run["samples_per_second"] == pytest.approx(2 * 32 / run["train_seconds"])
    assert run["inference"]["samples"] == 16  # as many batches
    assert run["test_accuracy"] is None
    assert run["confusion"] == []
    assert [entry["test_accuracy"] for entry in run["history"]] == [None, None]
    with pytest.raises(ParbenchError, match=r"steps 5: an epoch of 64 .* has 4; choose at most 4"):
        trained(tmp_path, digits, steps=5)


# ---------------------------------------------------------------- tables and report


def operator(name, milliseconds, on_gpu=None) -> dict:
    """Of a processor, and of a GPU; its total is twice its self time."""
    own, there = milliseconds / 1000, None if on_gpu is None else on_gpu / 1000
    return {
        **{"name": name, "calls": 5, "cpu_self_seconds": own, "cpu_total_seconds": 2 * own},
        **{"device_self_seconds": there, "device_total_seconds": there and 2 * there},
    }


def constructed_metrics(value: Cell) -> dict:
    """Made-up metrics.json of a cell of the study."""
    training, changes = value.training, {}
    if training.profile == "operators":
        listed = [operator("aten::bmm", 60), operator("aten::addmm", 20), operator("<b>&", 15)]
        totals = {"cpu_self_seconds": 0.1, "device_self_seconds": None}
        if value.hardware.device == "cuda":
            listed = [operator("aten::mm", 5, 150), operator("cudaLaunchKernel", 40, 0)]
            totals["device_self_seconds"] = 0.2
        part = {"steps": 5, **totals, "operators": listed}
        changes["profile"] = {"kind": "operators", "training": part, "inference": part}
    if training.steps is not None:
        changes |= scores.NO_SCORES
    return constructed.make_metrics(value.json(), **changes)


def collected(folder, study_name, **available) -> tuple[Path, Path]:
    """report.json and the table of a study with made-up numbers, on a machine that has this."""
    base = config.load()
    base |= {"studies": [study_name], "deployment": "host", "available": available}
    base["override"] = {study_name: {"seeds": [0]}}
    plan = expansion.plan(config.checked(base))
    plan.studies[study_name].pairs = []  # of whole cells alone
    found = {each: constructed_metrics(plan.cells[each]) for each in plan.runnable(study_name)}
    content = plan.studies[study_name].stated()
    plan_path, table_path = folder / f"{study_name}.json", folder / f"{study_name}.csv"
    plan_path.write_text(json.dumps(content))
    for name, metrics in found.items():
        metrics_json.write(folder / "cells" / name / "metrics.json", metrics)
    words = ["--plan", plan_path, "--cells", folder / "cells", "--out", table_path]
    tables.main(list(map(str, [*words, "--published", *places.published_files()])))
    data = folder / "report.json"
    report.main(
        [
            *("collect", "--plan", str(plan_path), "--table", str(table_path)),
            *("--cells", str(folder / "cells"), "--out", str(data)),
        ]
    )
    return data, table_path


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """kamoji-cpu with made-up numbers: (its table by group and metric, report.json, HTML, PDF)."""
    folder = tmp_path_factory.mktemp("kamoji")
    data, table_path = collected(folder, "kamoji-cpu", cpu=2)
    html, pdf = folder / "final.html", folder / "final.pdf"
    report.main(["html", "--data", str(data), "--out", str(html)])
    report.main(["pdf", "--data", str(data), "--out", str(pdf)])
    with open(table_path, newline="") as file:
        rows = {(r["model"], r["variant"], r["metric"]): r for r in csv.DictReader(file)}
    return rows, json.loads(data.read_text()), html.read_text(), Path(pdf).read_bytes()


def test_the_report_shows_operators(study):
    _, data, html, pdf = study
    shown = {table["title"]: table for table in data["studies"][0]["tables"]}
    operators_shown = [
        [each["text"] for each in row]
        for row in shown["Operators that take the time"]["rows"]
        if [row[0]["text"], row[1]["text"]] == ["vit", "operators-cpu"]
    ]
    assert operators_shown[0] == [
        *("vit", "operators-cpu", "1 CPU core", "aten::bmm", "671.137", "671.708", "38.2 %"),
        *("60.0 (1)", "120 (1)", "60.0 %", "60", "60.0 %"),
    ]
    assert "1 CPU device of 2 cores" in html
    assert "&lt;b&gt;&amp;" in html
    assert "<b>&" not in html
    assert pdf.startswith(b"%PDF")


def test_a_gpu_is_shown_by_its_own_clock(tmp_path):
    data, _ = collected(tmp_path, "kamoji", cpu=4, cuda={"H200": 1})
    shown = {
        table["title"]: [
            [each["text"] for each in row[1:]]
            for row in table["rows"]
            if [each["text"] for each in row[:2]] == ["vit", "operators-gpu"]
        ]
        for table in json.loads(data.read_text())["studies"][0]["tables"]
    }
    *_, share, own, training = shown["Operators that take the time"][0]
    assert (share, own, training) == ("75.0 %", "150", "75.0 %")
    figures = {
        each["title"]: each for each in json.loads(data.read_text())["studies"][0]["figures"]
    }
    drawn = figures["What does a larger batch bring?"]["parts"]
    assert "vit" in " ".join(each["alt"] for each in drawn)
    assert "1 CPU core" in drawn[0]["svg"]
    assert "samples/s" in drawn[0]["svg"]
