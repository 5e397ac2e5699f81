"""What scripts/bench.py does, never how long anything takes."""

from __future__ import annotations

import json
import sys

import pytest

import bench
from conftest import ROOT
from parbench.bench import benchmarks, turns
from parbench.errors import ParbenchError


@pytest.fixture
def context(tmp_path, monkeypatch):
    """Nothing here is timed: each side has one turn."""

    def once(contenders, pairs):
        return {name: [(work(),) * 2] for name, work in contenders.items()}

    monkeypatch.setattr(benchmarks, "take_turns", once)
    monkeypatch.setenv("PARBENCH_LEASES", str(tmp_path / "leases"))
    return benchmarks.Context(tmp_path, {"this": ROOT}, 1)


def test_rows_have_an_interval():
    for n, low, high in [(6, 1, 6), (10, 2, 9), (30, 10, 21)]:  # tables of the sign test
        row = turns.Row("constructed", "x", [float(value) for value in range(1, n + 1)]).result()
        assert (row["low"], row["high"], row["median"]) == (low, high, (n + 1) / 2)
        assert f"({low} to {high})" in turns.line(row)
    assert turns.line(turns.Row("few", "s", [1.0] * 5).result()) == "  few: 1 s (n=5)"


def test_sides_take_turns_so_that_a_drift_cancels():
    calls, clock = [], [0.0]

    def work(name):
        calls.append(name)
        clock[0] += 1
        return 5.0 + clock[0]  # slower and slower

    contenders = {name: lambda name=name: work(name) for name in "abc"}
    found = turns.take_turns(contenders, 6)
    pairs = ["".join(calls[start : start + 6]) for start in range(3, len(calls), 6)]
    assert len(set(pairs)) == 6  # every order once
    assert all(pair == pair[::-1] for pair in pairs)
    assert set(turns.ratio("constructed", found["a"], found["b"]).values) == {1.0}


def test_cells_of_two_checkouts_by_the_program(context, tmp_path, monkeypatch, capsys):
    def program(*words):
        monkeypatch.setattr(sys, "argv", ["bench.py", *map(str, words)])
        bench.main()

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


def test_the_workflow(context):
    variants = {"eager": {"strategy": "eager", "hardware": "cpu1"}}
    only = {"title": "All", "variants": ["eager"], "metrics": ["train_seconds"]}
    small = {"models": {"resnet18": {}}, "variants": variants, "tables": [only]}
    small |= {"claims": None, "together": {}, "pairs": None}
    settings = benchmarks.quickstart(ROOT)["settings"] | {
        "epochs": 1,
        "train_samples": 64,
        "test_samples": 32,
    }
    rows = benchmarks.study(context, **small, settings=settings)
    assert [row.what for row in rows] == [
        *("startup_seconds of 1 cells, this", "train_seconds of 1 cells, this"),
        *("snakemake -n, 1 jobs, this", "snakemake -n, 1 jobs, a bare Snakefile"),
    ]


def test_planning_of_many_cells(context):
    rows = benchmarks.cells5000(context, seeds=2)
    assert [row.what for row in rows] == [
        "snakemake -n --quiet, 20 jobs, this",
        "snakemake -n --quiet, 20 jobs, a bare Snakefile",
    ]
