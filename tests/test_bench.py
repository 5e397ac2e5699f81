"""parbench bench: what it does, never how long anything takes."""

from __future__ import annotations

import json
import math

import pytest

from parbench.__main__ import main
from parbench.bench import benchmarks, timing
from parbench.errors import ParbenchError
from parbench.verdicts import sequential
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
        main(["bench", *map(str, words)])

    small = benchmarks.STUDY.replace("steps: 8, global_batch: 64", "steps: 1, global_batch: 16")
    small = small.replace("resnet18: {}", "simple_cnn: {}")
    monkeypatch.setattr(benchmarks, "STUDY", small)
    out = tmp_path / "a folder/bench.json"
    program("start", "--pairs", 1, "--against", ROOT, "--out", out)
    result = json.loads(out.read_text())
    assert {"checkouts", "machine", "load", "rows"} <= set(result)
    assert [row["what"] for row in result["rows"]] == [
        *("startup_seconds, eager, this", "startup_seconds, ddp, this"),
        *("startup_seconds, eager, the other", "startup_seconds, ddp, the other"),
        "start of ddp over that of eager, this",
    ]
    assert "start of ddp over that of eager, this: " in capsys.readouterr().out
    with pytest.raises(ParbenchError, match="not a checkout of parbench"):
        program("--against", tmp_path)


@pytest.mark.parametrize("name", ["strat", "train"])  # a typo; one that is there no more
def test_an_unknown_benchmark_is_answered_with_the_known_ones(name):
    with pytest.raises(ParbenchError, match=f"unknown benchmark '{name}'; there are start, loop"):
        main(["bench", name])


def test_the_loop_beside_a_bare_one(context):
    rows = benchmarks.loop(context, steps=2)
    assert [row.what for row in rows] == [
        f"steps a second, Simple CNN, batch {batch}, cpu" for batch in (64, 16)
    ]
    assert all(value > 0 for row in rows for value in row.series.points)


def test_planning_of_many_cells(context):
    rows = benchmarks.cells5000(context, seeds=2)
    assert [row.what for row in rows] == [
        "snakemake -n --quiet, 20 jobs, this",
        "snakemake -n --quiet, 20 jobs, a bare Snakefile",
    ]


def test_contenders_go_there_and_back_after_an_unmeasured_turn():
    turns: list[str] = []

    def work(name):
        return lambda: turns.append(name) or float(len(turns))

    found = timing.take_turns({"a": work("a"), "b": work("b")}, pairs=2)
    assert "".join(turns) == "ab" + "abba" * 2
    assert found == {"a": [(3, 6), (7, 10)], "b": [(4, 5), (8, 9)]}


def test_a_row_has_the_interval_and_reading_of_every_verdict():
    few = timing.ratio("speed", [(2.0, 2.0)] * 3, [(1.0, 1.0)] * 3)
    assert timing.line(few) == "  speed: 2 x (n=3), undecided: 3 pairs, but at least 4 are needed"
    values = [(2.0, 2.1), (2.0, 2.0), (2.1, 2.0), (2.0, 2.0)]
    row = timing.ratio("speed", values, [(1.0, 1.0)] * 4)
    expected = sequential.interval(math.log(sum(pair) / 2) for pair in values)
    assert row.result() == {
        "what": "speed",
        "unit": "x",
        "mean": pytest.approx(math.exp(expected.mean)),
        "low": pytest.approx(math.exp(expected.low)),
        "high": pytest.approx(math.exp(expected.high)),
        "reading": "more than 1",
        "values": pytest.approx([2.05, 2.0, 2.05, 2.0]),
    }
    assert timing.seconds("time", values).result()["reading"] == ""
