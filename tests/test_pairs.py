"""Pairs: two sides of a comparison take turns on the same devices, by the launcher.

Real processes train a small model; a turn has some sixty steps.
"""

from __future__ import annotations

import importlib.util
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import training
from launched import Launched, wait_for
from parbench import files
from parbench.bench import benchmarks
from parbench.bench import pairs as known
from parbench.cell import Cell, Pair
from parbench.deploy import images
from parbench.measure import metrics_json
from require import require
from workspace import ROOT

BOTH = training.cell(), training.cell("ddp", 2)


@pytest.fixture
def launch(tmp_path, digits):
    """Makes a pair that can be launched; nothing of its runs may be left."""
    made = []

    def make(*sides: Cell, root: Path = ROOT, **kind) -> Launched:
        made.append(Launched(Pair(f"pair{len(made)}", 0, sides, **kind), digits, tmp_path, root))
        return made[-1]

    yield make
    left = [process for it in made for process in it.processes()]
    for process in left:
        process.kill()
    assert not left


def measured(it: Launched, **variables: str) -> dict:
    """What the pair leaves when it is launched."""
    status, _, errors = it.run(**variables)
    assert status == 0, errors + it.log.read_text()
    return metrics_json.read(it.out)


def ranks(it: Launched) -> dict[int, list[psutil.Process]]:
    """Its ranks that live, by side."""
    found: dict[int, list[psutil.Process]] = {}
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if words[1:2] == ["scripts/turns.py"] and str(it.folder / "cell.json") in words:
            found.setdefault(int(words[words.index("--side") + 1]), []).append(process)
    return found


def in_turn(it: Launched) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """The ranks of the side that has the turn, and those of the other one, once one is stopped."""
    found: list[list[psutil.Process]] = []

    def stopped() -> bool:
        sides = ranks(it)
        waiting = [n for n, side in sides.items() if {p.status() for p in side} == {"stopped"}]
        if waiting and len(sides) == 2:
            (number,) = waiting
            found[:] = [sides[1 - number], sides[number]]
        return bool(found)

    wait_for(stopped)
    return found[0], found[1]


# ---------------------------------------------------------------- turns


@pytest.mark.parametrize("strategy", ["eager", "horovod"])
def test_sides_take_turns_and_who_waits_uses_no_core(launch, strategy):
    if importlib.util.find_spec(strategy) is None and strategy == "horovod":
        pytest.skip("Horovod could not be built here")
    it = launch(training.cell(strategy, 1 if strategy == "eager" else 2), BOTH[1])
    process = it.start()
    turns = set()
    for _ in range(5):
        at_work, waiting = in_turn(it)
        turns.add(at_work[0].pid)
        before = [sum(each.cpu_times()[:2]) for each in waiting]
        time.sleep(0.2)
        if {each.status() for each in waiting} == {"stopped"}:  # all the time, or nearly so
            after = [sum(each.cpu_times()[:2]) for each in waiting]
            assert after == pytest.approx(before, abs=0.05)
        time.sleep(0.5)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors + it.log.read_text()
    assert len(turns) == 2
    metrics = metrics_json.read(it.out)
    slices = metrics["slices"]
    assert len(slices) >= 8
    order = [each["side"] for each in slices]
    assert order[:8] == [0, 1, 1, 0, 1, 0, 0, 1]
    assert [each["pair"] for each in slices] == [n // 2 for n in range(len(slices))]
    for side, steps in enumerate(each["steps"] for each in metrics["sides"]):
        assert steps > 4
        assert {each["samples"] for each in slices if each["side"] == side} == {48 * steps}
    worlds = [each["environment"]["world_size"] for each in metrics["sides"]]
    assert worlds == [1 if strategy == "eager" else 2, 2]


def test_two_models_at_once_against_one_after_the_other(launch):
    both = training.cell("concurrent", 2, beside={"simple_cnn": {}})
    it = launch(both, training.cell(), training.cell(model="simple_cnn"))
    metrics = measured(it)
    assert [each["side"] for each in metrics["slices"]][:9] == [0, 1, 2, 2, 1, 0, 2, 1, 0]
    assert set(Counter(each["pair"] for each in metrics["slices"]).values()) == {3}


def test_predicting(launch):
    metrics = measured(launch(*BOTH, inference=True))
    batches = {
        n: each["samples"] / metrics["sides"][n]["steps"]
        for n in (0, 1)
        for each in metrics["slices"]
        if each["side"] == n
    }
    assert batches == {0: 101, 1: 101}  # the test set is smaller than a batch


def test_sides_in_images(launch):
    settings = {"arguments": {}, "unpack": False}
    require("apptainer")
    if images.obstacle("current", settings):
        pytest.skip(images.obstacle("current", settings))
    it = launch(*(replace(side, deployment="apptainer") for side in BOTH))
    plan = {"stack": "current", "settings": settings}
    files.write_json(it.folder.parents[1] / "plan" / "images.json", plan)
    process = it.start()
    in_turn(it)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors + it.log.read_text()
    image = images.image("torch", "current", settings)
    found = [each["environment"] for each in metrics_json.read(it.out)["sides"]]
    assert [each["image"] for each in found] == [image.label] * 2
    assert [each["image_digest"] for each in found] == [image.facts["sha256"]] * 2


# ---------------------------------------------------------------- ends


def test_a_rank_that_is_killed_in_its_turn_is_named(launch):
    it = launch(*BOTH)
    process = it.start()
    wait_for(lambda: len(in_turn(it)[0]) == 2)
    killed = max(in_turn(it)[0], key=lambda each: int(each.environ()["RANK"]))
    killed.kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    sentence = "side test.swin.ddp: rank 1 of 2 died: killed by signal 9 (SIGKILL)"
    assert f"error: pair0: {sentence}\n" in errors
    assert not it.out.exists()
    assert not it.processes()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nobody_outlives_the_launcher_also_who_is_stopped(launch, number):
    it = launch(*BOTH)
    process = it.start()
    in_turn(it)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    wait_for(lambda: not it.processes(), seconds=20)
    if number == signal.SIGTERM:
        assert process.returncode == 128 + number
        assert "ended by SIGTERM; " in errors
        assert errors.endswith("the same command starts it anew\n")
    assert not it.out.exists()


# ---------------------------------------------------------------- what is found


def test_equal_sides_are_equal_and_a_slow_one_is_found(tmp_path, monkeypatch):
    """Bounds are wide: other work on the machine is not the same for all sides."""
    monkeypatch.setenv("PARBENCH_LEASES", str(tmp_path / "leases"))
    study = known.study(1, models={"simple_cnn": {}})
    study["variants"]["slowed10"]["options"] = {"share": 0.3}
    del study["pairs"]["compare"][1]
    context = benchmarks.Context(tmp_path, {"this": ROOT}, 1)
    equal, slowed = benchmarks.pairs(context, **study)
    assert equal.values == [pytest.approx(1, rel=0.15)]
    assert slowed.what == "slowed by 30 %"
    assert slowed.values == [pytest.approx(1.3, rel=0.12)]
