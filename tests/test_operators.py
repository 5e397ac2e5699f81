"""The operator profile of a cell; cells of a few steps instead of epochs; inference."""

from __future__ import annotations

import json

import pytest

import as_json
import constructed
from parbench import strategies
from parbench.__main__ import main
from parbench.cell import Cell
from parbench.errors import ParbenchError
from parbench.measure import metrics_json, scores
from parbench.measure.profiling import operators
from parbench.plan import config_files, expansion
from parbench.training import train
from parbench.training.progress import Heartbeat
from shown import collect, render
from training import cell

SMALL = {"train_samples": 64, "test_samples": 33, "global_batch": 16, "epochs": 1}


def trained(folder, data, **changes) -> dict:
    """Train a small cell in this process; return metrics.json."""
    value = cell(**{**SMALL, **changes})
    strategy = strategies.of(value)
    out = folder / "metrics.json"
    train.train(value, data, out, strategy, Heartbeat(0))
    return as_json.read(out)


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
    # One call per linear layer and forward pass; gradients use other operators.
    assert trained_by["aten::addmm"]["calls"] / 4 == tested_by["aten::addmm"]["calls"] / 5
    for part in (training, inference):
        own = [each["cpu_self_seconds"] for each in part["operators"]]
        assert own == sorted(own, reverse=True)
        assert len(own) <= operators.KEPT
        assert 0.7 * part["cpu_self_seconds"] < sum(own) <= part["cpu_self_seconds"] * 1.000001
        assert part["device_self_seconds"] is None
        assert all(e["cpu_self_seconds"] <= e["cpu_total_seconds"] for e in part["operators"])


class Event:
    """A torch.profiler event of an operator or, of kind CUDA, of a kernel."""

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
    """The weights are those without the profile."""
    plain = trained(tmp_path, digits, evaluation_batch=8)
    assert plain["weights_sha256"] == profiled["weights_sha256"]
    assert plain["profile"] is None
    assert plain["inference"]["samples"] == 33
    assert plain["inference"]["seconds"] > 0


def test_a_few_steps_measure_speed_and_no_accuracy(digits, tmp_path):
    run = trained(tmp_path, digits, steps=2, evaluation_batch=8, epochs=2)
    assert run["steps_per_epoch"] == 2
    assert run["samples_per_second"] == pytest.approx(2 * 32 / run["train_seconds"])
    assert run["inference"]["samples"] == 16  # two batches
    assert run["test_accuracy"] is None
    assert run["confusion"] == []
    assert [entry["test_accuracy"] for entry in run["history"]] == [None, None]
    with pytest.raises(ParbenchError, match=r"steps 5: an epoch of 64 .* has 4; choose at most 4"):
        trained(tmp_path, digits, steps=5)


# ---------------------------------------------------------------- tables and report


def operator(name, milliseconds, on_gpu=None) -> dict:
    """Return an operator's entry, on a CPU or also a GPU; total is twice self time."""
    own, there = milliseconds / 1000, None if on_gpu is None else on_gpu / 1000
    return {
        **{"name": name, "calls": 5, "cpu_self_seconds": own, "cpu_total_seconds": 2 * own},
        **{"device_self_seconds": there, "device_total_seconds": there and 2 * there},
    }


def constructed_metrics(value: Cell) -> dict:
    """Return made-up metrics.json of a cell of the study."""
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


def collected(folder, study_name, **available) -> dict:
    """Return report.json of a study with made-up numbers, on a machine with ``available``."""
    changes = {"studies": [study_name], "deployment": "host", "available": available}
    config = config_files.read([], changes | {"override": {study_name: {"seeds": [0]}}})
    plan = expansion.plan(config, config.resolved_deployment())
    plan.studies[study_name].pairs = []  # whole cells only
    paths = {"plan": folder / "plan.json", "table": folder / "table.csv", "cells": folder / "cells"}
    paths["plan"].write_text(json.dumps(plan.studies[study_name].stated()))
    for name in plan.runnable(study_name):
        metrics_json.write(
            paths["cells"] / name / "metrics.json", constructed_metrics(plan.cells[name])
        )
    words = ["--plan", paths["plan"], "--cells", paths["cells"], "--out", paths["table"]]
    main(["tables", *map(str, words)])
    return collect(paths)


def rows_of(data: dict, title: str, variant: str) -> list[list[str]]:
    """Return the rows of a variant of vit, as text."""
    table = next(each for each in data["studies"][0]["tables"] if each["title"] == title)
    rows = [[cell["text"] for cell in row] for row in table["rows"]]
    return [row for row in rows if row[:2] == ["vit", variant]]


def test_the_report_shows_operators(tmp_path):
    data = collected(tmp_path, "kamoji-cpu", cpu=2)
    assert rows_of(data, "Operators that take the most time", "operators-cpu")[0] == [
        *("vit", "operators-cpu", "1 CPU core", "aten::bmm", "671.137", "671.708", "38.2 %"),
        *("60.0 (1)", "120 (1)", "60.0 %", "60", "60.0 %"),
    ]
    html, pdf = render(data)
    assert "1 CPU device of 2 cores" in html
    assert "&lt;b&gt;&amp;" in html
    assert "<b>&" not in html
    assert pdf.startswith(b"%PDF")


def test_a_gpu_is_shown_by_its_own_clock(tmp_path):
    data = collected(tmp_path, "kamoji", cpu=4, cuda={"H200": 1})
    rows = rows_of(data, "Operators that take the most time", "operators-gpu")
    *_, share, own, training = rows[0]
    assert (share, own, training) == ("75.0 %", "150", "75.0 %")
    figures = {each["title"]: each["parts"] for each in data["studies"][0]["figures"]}
    drawn = figures["What does a larger batch bring?"]
    assert "vit" in " ".join(each["alt"] for each in drawn)
    assert "1 CPU core" in drawn[0]["svg"]
    assert "samples/s" in drawn[0]["svg"]
