"""scripts/bench.py: what it does, never how long anything takes."""

from __future__ import annotations

import json
import sys

import pytest

import bench
from parbench.bench import benchmarks, known_pairs
from parbench.errors import ParbenchError
from workspace import ROOT


@pytest.fixture
def context(tmp_path, monkeypatch):
    """Return a context in which each side runs once and nothing is timed."""

    def once(contenders, pairs):
        return {name: [(work(),) * 2] for name, work in contenders.items()}

    monkeypatch.setattr(benchmarks, "take_turns", once)
    monkeypatch.setenv("PARBENCH_LOCKS", str(tmp_path / "locks"))
    return benchmarks.Context(tmp_path, {"this": ROOT}, 1)


@pytest.mark.whole
def test_cells_of_two_checkouts_by_the_program(context, tmp_path, monkeypatch, capsys):
    def program(*words):
        monkeypatch.setattr(sys, "argv", ["bench.py", *map(str, words)])
        bench.main()

    small = benchmarks.STUDY.replace("steps: 8, global_batch: 64", "steps: 1, global_batch: 16")
    small = small.replace("resnet50: {}, resnet18: {}", "simple_cnn: {}")
    train = benchmarks.TimedCells.train
    monkeypatch.setattr(
        benchmarks.TimedCells, "train", lambda cells, _, *rest: train(cells, "simple_cnn", *rest)
    )
    monkeypatch.setattr(benchmarks, "STUDY", small)
    out = tmp_path / "a folder/bench.json"
    program("train", "--pairs", 1, "--against", ROOT, "--out", out)
    result = json.loads(out.read_text())
    assert {"checkouts", "machine", "load", "rows"} <= set(result)
    assert [row["what"] for row in result["rows"]] == [
        *("train_seconds, eager, this", "train_seconds, ddp, this"),
        *("train_seconds, eager, the other", "train_seconds, ddp, the other"),
        *("images a second, eager, over the other", "images a second, ddp, over the other"),
    ]
    assert "images a second, ddp, over the other: " in capsys.readouterr().out
    with pytest.raises(ParbenchError, match="unknown benchmark 'trian'; there are train"):
        program("trian")
    with pytest.raises(ParbenchError, match="no checkout of parbench"):
        program("--against", tmp_path)


def test_the_loop_beside_a_bare_one(context):
    rows = benchmarks.loop(context, steps=2)
    assert [row.what for row in rows] == [
        f"steps a second, Simple CNN, batch {batch}, cpu" for batch in (64, 16)
    ]
    assert all(value > 0 for row in rows for value in row.values)


def test_planning_of_many_cells(context):
    rows = benchmarks.cells5000(context, seeds=2)
    assert [row.what for row in rows] == [
        "snakemake -n --quiet, 20 jobs, this",
        "snakemake -n --quiet, 20 jobs, a bare Snakefile",
    ]


def test_the_share_of_its_cores_that_a_cell_does_not_account_for(context, monkeypatch):
    """`make bench ARGS=cores` shows that it is small, which takes an idle machine."""
    monkeypatch.setattr(known_pairs.strategies, "names", lambda: ["ddp", "spark", "stream"])
    (row,) = benchmarks.cores(context, models={"simple_cnn": {}})
    assert row.what == "used by other programs, ddp"
    assert 0 <= row.values[0] < 1
