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


def test_rows_have_an_interval_and_a_verdict():
    for n, low, high in [(6, 1, 6), (10, 2, 9), (30, 10, 21)]:  # tables of the sign test
        found = turns.interval([float(value) for value in range(1, n + 1)])
        assert (found["low"], found["high"], found["median"]) == (low, high, (n + 1) / 2)
    for values, bound, verdict in [
        ([0.9] * 25 + [0.99] * 5, {"reaches": 0.98}, "short"),
        ([0.97] * 15 + [0.99] * 15, {"reaches": 0.98}, "pass"),
        ([1.0] * 5, {"reaches": 0.98}, "undecided"),
        ([2.9, 3.1, 3.1], {"at_most": 3}, "short"),
        ([2.9, 2.9, 9.0], {"at_most": 3}, "pass"),
    ]:
        result = turns.Row("constructed", "x", values, **bound).result()
        assert result["verdict"] == verdict
        assert verdict in turns.table([result])


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


def test_cells(context):
    context.checkouts["the other"] = ROOT
    rows = benchmarks.bench_train(context)
    assert [row.what for row in rows] == [
        *("training, eager, this", "training, ddp, this"),
        *("training, eager, the other", "training, ddp, the other"),
        *("images a second, eager, over the other", "images a second, ddp, over the other"),
    ]
    assert all(row.values[0] > 0 for row in rows)


def test_the_workflow(context):
    variants = {"eager": {"strategy": "eager", "hardware": "cpu1"}}
    only = {"title": "All", "variants": ["eager"], "metrics": ["train_seconds"]}
    small = {"seeds": [0], "models": {"resnet18": {}}, "variants": variants, "tables": [only]}
    settings = benchmarks.quickstart(ROOT)["settings"] | {
        "epochs": 1,
        "train_samples": 64,
        "test_samples": 32,
    }
    rows = benchmarks.bench_quickstart(context, **small, settings=settings)
    assert [row.what for row in rows] == [
        *("starting quickstart's 1 cells, this", "training quickstart's 1 cells, this"),
        *("snakemake -n, all done, this", "snakemake -n, all done, a bare Snakefile"),
        "snakemake -n, all done, this beyond a bare Snakefile",
    ]


def test_planning_of_many_cells_by_two_checkouts(context):
    context.checkouts["the other"] = ROOT
    rows = benchmarks.bench_cells5000(context, seeds=2)
    assert [row.what for row in rows] == [
        "planning 20 cells, this",
        "planning 20 cells, the other",
        "planning 20 cells, a bare Snakefile",
    ]


def test_the_program_writes_what_it_shows(context, tmp_path, monkeypatch, capsys):
    def program(*words):
        monkeypatch.setattr(sys, "argv", ["bench.py", *map(str, words)])
        bench.main()

    out = tmp_path / "a folder/bench.json"
    program("start", "--pairs", 1, "--out", out)
    result = json.loads(out.read_text())
    assert {"checkouts", "machine", "load", "rows"} <= set(result)
    assert [row["what"] for row in result["rows"]] == [
        *("start, eager, this", "start, ddp, this", "start of ddp over that of eager, this")
    ]
    assert "start, eager, this" in capsys.readouterr().out
    program("--list")
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert listed == {"train", "start", "quickstart", "cells5000"}
    with pytest.raises(ParbenchError, match="unknown benchmark 'trian'; there are train"):
        program("trian")
    with pytest.raises(ParbenchError, match="no checkout of parbench"):
        program("--against", tmp_path)
