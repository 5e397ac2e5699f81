"""What scripts/bench.py does, never how long anything takes."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import bench
import strategies
import train
from errors import ParbenchError

ROOT = Path(__file__).resolve().parent.parent
SMALL = {"global_batch": 8, "train_samples": 16, "test_samples": 8, "min_tail": 8}


@pytest.fixture(autouse=True)
def private_leases(tmp_path, monkeypatch):
    """Nothing here is timed: do not wait for the cores, and share them where there are too few."""
    monkeypatch.setenv("PARBENCH_LEASES", str(tmp_path / "leases"))
    monkeypatch.setenv("PARBENCH_OVERSUBSCRIBE", "1")


def program(*words: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts/bench.py"), *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


# --- statistics


@pytest.mark.parametrize(
    ("n", "low", "high"),  # ranks, from published tables of the sign test's interval
    [(6, 1, 6), (10, 2, 9), (20, 6, 15), (30, 10, 21), (100, 40, 61)],
)
def test_interval_of_the_median(n, low, high):
    found = bench.interval(reversed(range(1, n + 1)))
    assert (found["low"], found["high"]) == (low, high)
    assert (found["median"], found["min"], found["max"]) == ((n + 1) / 2, 1, n)
    outside = 2 * sum(math.comb(n, k) for k in range(low)) / 2**n
    assert found["coverage"] == pytest.approx(1 - outside)
    assert found["coverage"] >= 0.95


@pytest.mark.parametrize("n", [1, 2, 5])
def test_few_values_have_no_interval(n):
    found = bench.interval(range(n))
    assert found["low"] is found["high"] is found["coverage"] is None
    assert (found["min"], found["max"], found["n"]) == (0, n - 1, n)


def test_one_outlier_moves_nothing():
    values = [1.0] * 29
    assert bench.interval([*values, 1000.0])["high"] == 1.0


@pytest.mark.parametrize(
    ("bound", "values", "verdict"),
    [
        (bench.reaches(0.98), [0.9] * 25 + [0.99] * 5, "short"),
        (bench.reaches(0.98), [0.97] * 15 + [0.99] * 15, "pass"),
        (bench.reaches(0.98), [1.0] * 5, "undecided"),
        (bench.at_least(4), [3.9] * 15 + [4.1] * 15, "short"),
        (bench.at_least(4), [3.9] * 5 + [4.1] * 25, "pass"),
        (bench.at_most(3, "s"), [2.9, 2.9, 9.0], "pass"),
        (bench.at_most(3, "s"), [2.9, 3.1, 3.1], "short"),
    ],
)
def test_verdicts(bound, values, verdict):
    row = bench.Row("x", "constructed", "x", bench.interval(values), bound=bound)
    assert row.verdict == verdict
    assert verdict in bench.table([row])
    assert bound.text in bench.table([row])


def test_what_could_not_run_says_why():
    row = bench.Row("ddp", "constructed", "x", bound=bench.reaches(0.97), reason="needs 2 cores")
    assert row.verdict == "not run"
    assert "needs 2 cores" in bench.table([row])


# --- taking turns


def test_each_pair_goes_there_and_back_in_another_order():
    calls = []

    def contender(name):
        def work():
            calls.append(name)
            return bench.Slice(1, 1.0, 1.0)

        return work

    slices = bench.interleave({name: contender(name) for name in "abc"}, 6, shown=False)
    assert calls[:3] == ["a", "b", "c"]  # unmeasured
    pairs = ["".join(calls[start : start + 6]) for start in range(3, len(calls), 6)]
    assert len(pairs) == len(set(pairs)) == 6  # every order once
    for pair in pairs:
        assert pair == pair[::-1]
        assert set(pair) == set("abc")
    assert {name: [len(pair) for pair in found] for name, found in slices.items()} == {
        name: [2] * 6 for name in "abc"
    }


def test_a_steady_drift_cancels():
    clock = [0.0]

    def work():
        clock[0] += 1
        return bench.Slice(10, 5.0 + clock[0], 1.0)  # slower and slower

    slices = bench.interleave(dict.fromkeys(("product", "itself", "other"), work), 8, shown=False)
    row = bench.ratio_row("x", "constructed", slices, "other")
    assert row.found["min"] == row.found["max"] == row.noise["median"] == 1


def test_ratios_are_of_images_per_second():
    slices = {
        name: [[bench.Slice(images, seconds, cpu)] * 2] * 6
        for name, images, seconds, cpu in (
            ("product", 80, 2.0, 1.0),
            ("itself", 80, 2.0, 1.0),
            ("other", 10, 1.0, 1.0),
        )
    }
    row = bench.ratio_row("x", "constructed", slices, "other", bench.at_least(4))
    assert row.found["median"] == 4
    assert row.more["by_cpu_time"]["ratio"]["median"] == 8
    assert row.more["images_per_second"] == {"product": 40, "itself": 40, "other": 10}
    assert row.verdict == "pass"


# --- both sides do the same work


@pytest.mark.parametrize("in_memory", [True, False])
def test_the_bare_loop_computes_what_the_product_does(tmp_path, monkeypatch, in_memory):
    value = bench.cell("eager", model="resnet18", **SMALL)
    data = bench.synthetic(tmp_path, 16)
    strategy = strategies.load("eager").Strategy(value)
    strategy.setup()
    kept = {}

    class Run(train.Run):
        def train_epoch(self, *arguments):
            kept["product"] = self.model
            return super().train_epoch(*arguments)

    plain = bench.bare_epoch

    def bare_epoch(model, optimizer, batches):
        kept["bare"] = model
        plain(model, optimizer, batches)

    monkeypatch.setattr(train, "Run", Run)
    monkeypatch.setattr(bench, "bare_epoch", bare_epoch)
    bench._product(value, data, strategy)()
    bench._bare(value, data, strategy, in_memory=in_memory)()
    ours, theirs = (list(kept[name].state_dict().values()) for name in ("product", "bare"))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_both_inputs_give_normalised_batches_of_all_images(tmp_path):
    import loader

    images = loader.load(bench.synthetic(tmp_path, 300), "cpu")
    value = bench.cell("eager", train_samples=300)
    for batches in (bench._product_batches(value, images), bench._torchvision_batches(images)):
        pixels, labels = zip(*batches(0), strict=True)
        assert torch.cat(labels).bincount().tolist() == [30] * 10
        assert [len(part) for part in pixels] == [128, 128, 44]
        assert pixels[0].shape[1:] == (3, 32, 32)
        assert pixels[0].dtype == torch.float32
        # Noise around the mean, with black borders of up to 4 pixels.
        assert torch.cat(pixels).mean().abs() < 0.4


# --- from end to end


@pytest.mark.parametrize(("strategy", "devices"), [("eager", 1), ("ddp", 2)])
def test_loops_of_a_worker(tmp_path, strategy, devices):
    context = bench.Context(tmp_path, pairs=1)
    bench.synthetic(tmp_path, 16)
    value = bench.cell(strategy, devices, "resnet18", **SMALL)
    slices = bench.run_worker(context, "loops", value)
    assert set(slices) == {"product", "itself", "in_memory", "same_input"}
    for pairs in slices.values():
        assert [part.images for part in pairs[0]] == [16, 16]
        assert all(part.seconds > 0 for part in pairs[0])


def test_the_cost_of_checkpoints(tmp_path):
    value = bench.cell("eager", model="resnet18", optimizer="adamw", **SMALL)
    bench.synthetic(tmp_path, 16)
    ((pair,),) = bench.run_worker(bench.Context(tmp_path, pairs=1), "checkpoint", value).values()
    assert all(part.seconds > 0 for part in pair)
    written = sorted((tmp_path / "checkpoints").glob("*.safetensors"))
    assert len(written) == 2
    # Weights and AdamW's two averages, in 4 bytes each.
    assert written[1].stat().st_size > 3 * 4 * 11e6


def test_a_worker_that_fails_is_an_error_with_its_last_words(tmp_path):
    value = bench.cell("eager", model="resnet51")
    bench.synthetic(tmp_path, 16)
    with pytest.raises(ParbenchError, match="train_samples is 128"):
        bench.run_worker(bench.Context(tmp_path, 1), "loops", value)


def test_result_file(tmp_path):
    out = tmp_path / "a folder" / "bench.json"
    done = program("input", "--pairs", "1", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "undecided" in done.stdout  # one pair has no interval
    result = json.loads(out.read_text())
    assert {"started", "finished", "pairs", "statistics", "load", "rows"} <= set(result)
    assert {"machine", "packages", "git_commit", "git_dirty", "code_digest"} <= set(
        result["environment"]
    )
    assert "torch" in result["environment"]["packages"]
    assert set(result["load"]["input"]) == {"before", "after", "started", "finished"}
    (row,) = result["rows"]
    assert (row["benchmark"], row["unit"], row["found"]["n"]) == ("input", "x", 1)
    assert row["noise"]["n"] == 1
    assert row["bound"]["value"] == 4


def test_dry_run_of_a_finished_folder(tmp_path):
    ours, bare = bench.bench_noop(bench.Context(tmp_path, 1, runs=1), seeds=1)
    assert "cells done" in ours.what
    assert ours.bound.value == 3
    assert ours.found["median"] > 0
    assert bare.found["n"] == 1
    # Only the launcher was stood in for, and it is back.
    for name in ("launch.py", "cells.py"):
        copied = tmp_path / "work/scripts" / name
        assert copied.read_bytes() == (ROOT / "scripts" / name).read_bytes()


def test_dry_run_of_many_cells(tmp_path):
    rows = bench.bench_cells5000(bench.Context(tmp_path, 1, runs=1), seeds=2)
    assert [row.unit for row in rows] == ["s", "MB", "s", "MB"]
    assert "20 cells" in rows[0].what
    assert "20 jobs" in rows[2].what
    assert all(row.found["median"] > 0 for row in rows)


def test_the_start_of_a_cell(tmp_path):
    bench.synthetic(tmp_path, 128)
    parts = bench._start(tmp_path, bench.cell("eager", model="resnet18"))
    assert parts["launcher"] > 0
    assert parts["startup_seconds"] > 0


# --- the command line


def test_list_names_every_benchmark():
    done = program("--list")
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(bench.benchmarks())
    assert {"eager", "input", "ddp", "startup", "noop", "cells5000"} <= set(bench.benchmarks())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eagr"], "unknown benchmark 'eagr'; did you mean 'eager'?"),
        (["--pairs", "0"], "--pairs 0: at least 1 is needed"),
        (["--runs", "-1"], "--runs -1: at least 1 is needed"),
    ],
)
def test_mistakes(words, message):
    done = program(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_lives_on_after_an_end(tmp_path):
    words = [sys.executable, str(ROOT / "scripts/bench.py"), "eager"]
    words += ["--out", str(tmp_path / "bench.json")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    mark = f"TMPDIR={tmp_path}".encode()

    def children() -> list[str]:
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes().split(b"\0"):
                    found.append(path.parent.name)
            except OSError:
                pass
        return [pid for pid in found if int(pid) != process.pid]

    deadline = time.monotonic() + 60
    while not children() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert children()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert children() == []
    assert not list(tmp_path.glob("parbench*"))
