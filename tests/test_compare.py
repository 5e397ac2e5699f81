"""compare.py: two files of evidence side by side, on made-up numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import constructed
from constructed import A100X2, CPU1, CPU2, Group
from parbench.errors import ParbenchError
from parbench.verdicts import certificate, compare, evidence

EAGER = Group("resnet18", "eager", CPU1)
DDP = Group("resnet18", "ddp", CPU2, 7.0)


def write(folder: Path, groups, change=lambda metrics: metrics, name="constructed") -> Path:
    """A file of evidence of these groups; ``change`` alters each metrics.json."""
    constructed.write_study(folder, constructed.usual_study(name), groups, change)
    certificate.write(folder / "results/certificates/host.json", "host", {}, [])
    return evidence.write(evidence.gather(name, folder / "results"), folder)


def changed(seconds=1.0, accuracy=0.0, weights=None, noise=(0, 0, 0), cpu="Other CPU", **machine):
    """What another machine makes of the same cells; ``noise`` is added to the factor, by seed."""

    def change(metrics):
        if metrics["status"] == "ok":
            metrics["train_seconds"] *= seconds + noise[metrics["cell"]["seed"]]
            metrics["test_accuracy"] += accuracy
            metrics["weights_sha256"] = weights or metrics["weights_sha256"]
        metrics["environment"]["machine"] |= {"cpu": cpu, **machine}
        return metrics

    return change


@pytest.fixture
def first(tmp_path):
    return write(tmp_path / "a", [EAGER, DDP])


def rows(a: Path, b: Path) -> pd.DataFrame:
    return compare.table(compare.match(compare.Side.read(a), compare.Side.read(b)).pairs)


def said_of(a: Path, b: Path) -> str:
    sides = compare.Side.read(a), compare.Side.read(b)
    return compare.show(*sides, compare.match(*sides))


def row(frame: pd.DataFrame, metric: str, variant="eager") -> pd.Series:
    return frame[(frame["metric"] == metric) & (frame["variant"] == variant)].iloc[0]


def test_the_same_cells_are_compared_seed_by_seed(tmp_path, first):
    second = write(tmp_path / "b", [EAGER, DDP], changed(0.5, 0.01, weights="f" * 64))
    frame = rows(first, second)
    times = row(frame, "train_seconds", "ddp")
    assert times[["kind", "pairs", "n_a", "n_b"]].tolist() == ["ratio", 3, 3, 3]
    assert times["mean_a"] == pytest.approx(7.0)
    assert times["mean_b"] == pytest.approx(3.5)
    assert times[["mean", "ci_low", "ci_high"]].tolist() == pytest.approx([2, 2, 2])
    assert times["reading"] == "B is better"
    assert times[["differs", "same_cells", "equal_weights"]].tolist() == ["", 3, 0]
    scores = row(frame, "test_accuracy")
    assert scores["kind"] == "difference"
    assert scores["mean"] == pytest.approx(0.01)
    # The other way round, ratio and difference are the other way round.
    back = rows(second, first)
    assert row(back, "train_seconds")["mean"] == pytest.approx(0.5)
    assert row(back, "train_seconds")["reading"] == "A is better"
    assert row(back, "test_accuracy")["mean"] == pytest.approx(-0.01)
    # Throughput is a ratio in which more is better, too: it was not changed here.
    assert row(frame, "samples_per_second")["reading"] == (
        "no difference beyond the spread of the seeds"
    )


def test_a_ratio_within_the_spread_is_no_difference_and_two_seeds_decide_nothing(tmp_path, first):
    noisy = write(tmp_path / "b", [EAGER], changed(noise=(0.1, -0.1, 0.02)))
    assert "no difference" in row(rows(first, noisy), "train_seconds")["reading"]
    few = write(tmp_path / "c", [Group("resnet18", "eager", CPU1, seeds=(1, 2))], changed(2.0))
    found = row(rows(first, few), "train_seconds")
    assert found["reading"] == "undecided: 2 of at least 3 seeds"
    assert found["pairs"] == 2
    said = said_of(first, few)
    assert "undecided: 2 of at least 3 seeds" in said
    assert "24.0 to 24.3 s" in said  # the range of too few seeds
    assert "Only in A: resnet18 ddp." in said


def test_other_hardware_is_matched_by_variant_and_said(tmp_path, first):
    cards = {"accelerators": [{"name": "NVIDIA A100", "memory_mib": 80000, "driver": "550"}] * 2}
    groups = [EAGER, Group("resnet18", "ddp", A100X2, 0.7)]
    second = write(tmp_path / "b", groups, changed(weights="f" * 64, **cards))
    found = row(rows(first, second), "train_seconds", "ddp")
    assert found["mean"] == pytest.approx(10)
    assert found[["differs", "same_cells"]].tolist() == ["2 CPU cores against 2x NVIDIA A100", 0]
    said = said_of(first, second)
    assert "ddp [1]" in said
    assert "[1] 2 CPU cores against 2x NVIDIA A100" in said
    assert "3 cells are the same on both: 0 learned the same weights to the last bit" in said
    assert "A: constructed, constructed-x2, 2030-01-03, stack current, deployment host" in said
    assert "B: constructed, a100-x2, 2030-01-03" in said


def test_other_settings_are_said(tmp_path, first):
    other = Group("resnet18", "eager", CPU1, epochs=8)
    constructed.write_study(tmp_path / "b", groups=[other])
    plan = tmp_path / "b/results/plan/constructed.json"
    content = json.loads(plan.read_text())
    content["groups"][0] |= {"id": "resnet18.eager.cpu1-00000000"}
    content["stack"] = "paper"
    plan.write_text(json.dumps(content))
    certificate.write(tmp_path / "b/results/certificates/host.json", "host", {}, [])
    second = evidence.write(evidence.gather("constructed", tmp_path / "b/results"), tmp_path / "b")
    found = row(rows(first, second), "train_seconds")
    assert found["differs"] == "stack current against paper; epochs 4 against 8"
    assert found["reading"] == "not judged: other work"


def test_what_has_no_number_says_why(tmp_path, first):
    groups = [
        Group("resnet18", "eager", CPU1, status="diverged", reason="loss was NaN"),
        Group("resnet18", "ddp", CPU2, not_run="needs 2 cores"),
        Group("swin", "eager", CPU1),
    ]
    second = write(tmp_path / "b", groups)
    frame = rows(first, second)
    assert row(frame, "train_seconds")["reading"] == ("nothing to compare: A ok, B diverged 3 of 3")
    assert row(frame, "train_seconds", "ddp")["reading"] == "nothing to compare: A ok, B not run"
    assert "Only in B: swin eager." in said_of(first, second)


def test_times_of_cells_that_shared_cores_are_not_compared(tmp_path, first):
    def busy(metrics):
        metrics["environment"]["oversubscribed"] = True
        return metrics

    frame = rows(first, write(tmp_path / "b", [EAGER], busy))
    assert row(frame, "train_seconds")["reading"] == "B: its devices shared cores"
    assert "no difference" in row(frame, "test_accuracy")["reading"]


def without_scores(metrics):
    """A run of a few steps, as another machine makes it."""
    metrics["cell"]["training"]["steps"] = 2
    metrics |= {name: None for name in metrics if name in compare.METRICS and "test_" in name}
    for epoch in metrics["history"]:
        epoch |= {"test_accuracy": None, "test_loss": None}
    return metrics


def together(folder: Path, change=lambda metrics: metrics, model_options=None) -> Path:
    """Evidence of two models, and of both together."""
    groups = [EAGER, Group("swin", "eager", CPU1, 20.0)]
    constructed.write_study(folder, groups=groups, change=change)
    path = folder / "results/plan/constructed.json"
    plan = json.loads(path.read_text())
    members = plan["groups"]
    members[1]["model_options"] = model_options or {}
    plan["together"] = [
        {
            **members[0],
            "id": "both.eager",
            "model": "both",
            "model_options": {},
            "members": [each["id"] for each in members],
            "cells": [cell for each in members for cell in each["cells"]],
        }
    ]
    path.write_text(json.dumps(plan))
    certificate.write(folder / "results/certificates/host.json", "host", {}, [])
    return evidence.write(evidence.gather("constructed", folder / "results"), folder)


def test_models_that_are_trained_together_are_compared_by_their_total(tmp_path):
    first, second = together(tmp_path / "a"), together(tmp_path / "b", changed(0.5, 0.01))
    frame = rows(first, second)
    total = frame[frame["model"] == "both"]
    assert total["metric"].tolist() == ["total_seconds"]
    total = total.iloc[0]
    assert total[["mean_a", "mean_b", "mean"]].tolist() == pytest.approx([32, 16, 2])
    assert total["reading"] == "B is better"
    assert "total_seconds" not in set(frame[frame["model"] != "both"]["metric"])
    said = said_of(first, second)
    assert "32.0 ± 0.4 s" in next(line for line in said.splitlines() if line.startswith("both"))
    assert "6 cells are the same on both" in said  # each once
    other = together(tmp_path / "c", model_options={"depth": 2})
    total = rows(first, other).iloc[-1]
    assert total["differs"] == 'swin {} against {"depth":2}'
    assert total["reading"] == "not judged: other work"


def test_as_a_program(tmp_path, first, capsys):
    second = write(tmp_path / "b", [EAGER, DDP], changed(0.5))
    csv = tmp_path / "out.csv"
    compare.main([str(first), str(second), "--csv", str(csv)])
    said = capsys.readouterr().out
    assert "93.00 ± 0.22 %" in said
    assert "12.0 ± 0.1 s" in said
    assert "2.00 ± 0.00" in said
    assert "6 cells are the same on both: 6 learned the same weights" in said
    frame = pd.read_csv(csv)
    assert set(frame["variant"]) == {"eager", "ddp"}


def test_files_that_cannot_be_compared_are_refused_in_a_sentence(tmp_path, first):
    other = write(tmp_path / "b", [Group("swin", "eager", CPU1)], name="another")
    with pytest.raises(ParbenchError, match=r"no cell, and no variant .*constructed and another"):
        compare.main([str(first), str(other)])
    with pytest.raises(ParbenchError, match=r"nothing.json: no such file"):
        compare.main([str(first), str(tmp_path / "nothing.json")])
    metrics = next((tmp_path / "a/results/cells").glob("*/metrics.json"))
    with pytest.raises(ParbenchError, match="not evidence of this version"):
        compare.main([str(metrics), str(first)])
