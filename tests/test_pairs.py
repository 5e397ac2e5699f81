"""Pairs: the launcher interleaves slices of two sides on the same devices.

Real processes train a small model; a slice has about sixty steps.
"""

from __future__ import annotations

import importlib.util
import itertools
import shutil
import signal
import subprocess
from dataclasses import replace

import psutil
import pytest

import as_json
import training
from launched import Launched, launched_pairs, wait_for
from parbench import files
from parbench.bench import benchmarks, known_pairs
from parbench.cell import Pair
from parbench.deploy import apptainer, containers, recipes
from parbench.launch.interleaving import SLICE_SECONDS, TURN_SECONDS, Turn, turn_seconds, warmed_up
from parbench.measure import provenance
from require import require
from workspace import HANG_SECONDS, ROOT, Workspace

BOTH = training.cell(), training.cell("ddp", 2)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Return a copy of the project whose slices are short and few."""
    work = Workspace(tmp_path_factory.mktemp("quick") / "work")
    work.edit("scripts/parbench/launch/interleaving.py", "PAIRS = 4", "PAIRS = 2")
    return work.folder


WATCHED = """
import os
import sys
import time
from pathlib import Path


def turn(others):
    # Wait until the processes of other sides are stopped, say so, and wait while a test holds it.
    if os.environ["LOCAL_RANK"] != "0":
        return
    paths = [Path(f"/proc/{pid}/stat") for pid in others]
    while any(path.read_text().rpartition(") ")[2][0] != "T" for path in paths):
        time.sleep(0.01)
    side = sys.argv[sys.argv.index("--side") + 1]
    os.write(2, f"turn {side} {len(others)}\\n".encode())  # into the log
    while Path(os.environ.get("TMPDIR", "/tmp"), f"hold-{side}").exists():  # images have none
        time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Return a copy of the project whose ranks tell of turns, which a test may hold."""
    work = Workspace(tmp_path_factory.mktemp("watched") / "work")
    (work.folder / "scripts/parbench/training/watched.py").write_text(WATCHED)
    file = "scripts/parbench/training/pair_rank.py"
    work.edit(file, "infer, launched", "infer, launched, watched")
    work.edit(
        file, "    try:\n        yield\n", "    try:\n        watched.turn(others)\n        yield\n"
    )
    return work.folder


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Return a copy of the project in which a step of Swin takes a second, and of others seven."""
    work = Workspace(tmp_path_factory.mktemp("told") / "work")
    work.edit("scripts/parbench/launch/interleaving.py", "PAIRS = 4", "PAIRS = 1")
    seconds = 'steps * (1.0 if strategy.model.name == "swin" else 7.0)'
    work.edit(
        "scripts/parbench/training/pair_rank.py",
        '"seconds": watch.seconds',
        f'"seconds": {seconds}',
    )
    return work.folder


@pytest.fixture
def launch(tmp_path, digits):
    yield from launched_pairs(tmp_path, digits)


def measured(it: Launched) -> dict:
    """Launch the pair; return its metrics.json."""
    status, _, errors = it.run()
    assert status == 0, errors + it.log.read_text()
    return as_json.read(it.out)


def ranks(it: Launched) -> dict[int, list[psutil.Process]]:
    """Return its live ranks, by side."""
    mine = {}
    for process in psutil.process_iter(["cmdline", "ppid"]):
        words = process.info["cmdline"] or []
        if (
            words[1:3] == ["scripts/bin/parbench", "turns"]
            and str(it.folder / "cell.json") in words
        ):
            mine[process.pid] = process
    found: dict[int, list[psutil.Process]] = {}
    for process in mine.values():
        if process.info["ppid"] in mine:
            continue  # a child that a rank has just forked, still with the rank's command
        words = process.info["cmdline"]
        found.setdefault(int(words[words.index("--side") + 1]), []).append(process)
    return found


def turns(it: Launched) -> list[tuple[int, int]]:
    """Return the turns so far: the side, and how many processes of others were stopped."""
    lines = it.log.read_text().splitlines() if it.log.exists() else []
    words = [line.split() for line in lines if line.startswith("turn ")]
    return [(int(side), int(others)) for _, side, others in words]


def held(it: Launched, side: int) -> subprocess.Popen:
    """Start the pair, and hold the first turn of ``side``."""
    (it.temporary / f"hold-{side}").touch()
    process = it.start()
    wait_for(lambda: side in dict(turns(it)) or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process


# ---------------------------------------------------------------- turns


def test_horovod_has_turns_of_a_second():
    def seconds(strategy: str) -> float:
        return turn_seconds(Pair("a", 0, (training.cell(), training.cell(strategy, 2))))

    assert (seconds("ddp"), seconds("horovod")) == (TURN_SECONDS, SLICE_SECONDS)


@pytest.mark.parametrize(
    ("seconds", "steps", "turns"),
    [((0.01, 0.02), [10, 5], 10), ((0.3, 0.01), [1, 30], 3), ((0.01, 5.0), [500, 1], 1)],
)
def test_a_turn_is_short_and_at_least_a_step_of_the_slower_side(seconds, steps, turns):
    def turn(side: int, count: int) -> Turn:
        slow_start = 0.2 * (count == 1) * (seconds[side] < 1)
        return Turn(count, count * seconds[side] + slow_start, 0.0, 0.0, None)

    assert warmed_up(turn, range(2), TURN_SECONDS) == (steps, turns)


def test_sides_take_turns_and_who_waits_is_stopped(launch, watched):
    """Also Horovod's thread, which runs while its rank waits."""
    has_horovod = importlib.util.find_spec("horovod") is not None  # it may not be built here
    first = training.cell("horovod", 2) if has_horovod else BOTH[0]
    it, sizes = launch(first, BOTH[1], root=watched), [first.hardware.devices, 2]
    metrics = measured(it)
    slices, (of_a_slice,) = metrics["slices"], {each["turns"] for each in metrics["sides"]}
    orders = itertools.cycle([(0, 1), (1, 0), (1, 0), (0, 1)])
    rounds = list(itertools.islice(orders, of_a_slice * len(slices) // 2))
    taken = [0, 0, 1, 1, *itertools.chain(*rounds)]  # after each side's warm-up
    assert turns(it) == [(side, sizes[1 - side]) for side in taken]
    assert [each["side"] for each in slices] == [*itertools.chain(*rounds[::of_a_slice])]
    assert [each["pair"] for each in slices] == [n // 2 for n in range(len(slices))]
    for side, told in enumerate(metrics["sides"]):
        samples = {each["samples"] for each in slices if each["side"] == side}
        assert samples == {48 * told["steps"] * of_a_slice}
        state = [each["state_mib"] for each in told["peak_memory_mib"]["processes"]]
        assert (len(state), min(state) > 0) == (sizes[side], True)
    assert [each["environment"]["world_size"] for each in metrics["sides"]] == sizes
    own = [provenance.combined(provenance.code_of(side)) for side in (first, BOTH[1])]
    assert [each["environment"]["side_digest"] for each in metrics["sides"]] == own


def test_two_models_at_once_against_one_after_the_other(launch, quick):
    both = training.cell("concurrent", 2, beside={"simple_cnn": {}})
    it = launch(both, training.cell(), training.cell(model="simple_cnn"), root=quick)
    sides = [each["side"] for each in measured(it)["slices"]]
    assert sides[:6] == [0, 1, 2, 2, 1, 0]


@pytest.mark.whole
def test_sides_that_memory_does_not_hold_together_run_apart(launch, quick, tmp_path):
    it = launch(training.cell(), training.cell("gpipe", 1, balance=[1]), root=quick)
    # Programs take modules of a PYTHONPATH inside their own checkout alone.
    shutil.copytree(ROOT / "tests" / "dying", quick / "dying")
    full = {"PYTHONPATH": str(quick / "dying"), "FULL": f"1 {tmp_path / 'memory'}"}
    status, said, errors = it.run(**full)
    assert status == 0, errors + it.log.read_text()
    assert "no room beside another side; each turn will be a separate run" in said
    metrics = as_json.read(it.out)
    assert [each["side"] for each in metrics["slices"]] == [0, 1, 1, 0]
    assert metrics["reason"].startswith("each turn was a separate run, since together ")


def test_predicting(launch, quick):
    metrics = measured(launch(*BOTH, inference=True, root=quick))
    batches = {
        n: each["samples"] / metrics["sides"][n]["steps"] / metrics["sides"][n]["turns"]
        for n in (0, 1)
        for each in metrics["slices"]
        if each["side"] == n
    }
    assert batches == {0: 101, 1: 101}  # the test set is smaller than a batch


def test_sides_in_images(launch, watched):
    settings = recipes.ImageSettings(unpack=False)
    require("apptainer")
    if problem := apptainer.probe().problem:
        pytest.skip(problem)
    image = recipes.image("torch", "current", settings)
    containers.ensure(image, settings)
    it = launch(*(replace(side, deployment="apptainer") for side in BOTH), root=watched)
    plan = containers.planned("current", settings)
    files.write_json(it.folder.parents[1] / "plan" / "images.json", plan)
    sides = measured(it)["sides"]
    assert turns(it)[:4] == [(0, 2), (0, 2), (1, 1), (1, 1)]
    found = [each["environment"] for each in sides]
    assert [each["image"] for each in found] == [image.label] * 2
    assert [each["image_digest"] for each in found] == [image.facts["sha256"]] * 2


# ---------------------------------------------------------------- ends


def test_a_rank_that_is_killed_in_its_turn_is_named(launch, watched):
    it = launch(*BOTH, root=watched)
    process = held(it, 1)
    (killed,) = [each for each in ranks(it)[1] if each.environ()["RANK"] == "1"]
    killed.kill()
    _, errors = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 1
    sentence = "side test.swin.ddp: rank 1 of 2 died: killed by signal 9 (SIGKILL)"
    assert f"error: pair: {sentence}\n" in errors
    assert not it.out.exists()
    assert not it.processes()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nobody_outlives_the_launcher_also_who_is_stopped(launch, watched, number):
    it = launch(*BOTH, root=watched)
    process = held(it, 0)
    process.send_signal(number)
    _, errors = process.communicate(timeout=HANG_SECONDS)
    wait_for(lambda: not it.processes())
    if number == signal.SIGTERM:
        assert process.returncode == 128 + number
        assert "ended by SIGTERM; " in errors
        assert errors.endswith("the same command starts it again\n")
    assert not it.out.exists()


# ---------------------------------------------------------------- what is found


def test_equal_sides_and_a_slow_one_are_measured(tmp_path, monkeypatch):
    """`make bench ARGS=pairs` says whether the slow one is found, which takes an idle machine."""
    monkeypatch.setenv("PARBENCH_LOCKS", str(tmp_path / "locks"))
    study = known_pairs.study(1, models={"simple_cnn": {}})
    study["variants"]["slowed10"]["options"] = {"share": 1.0}
    del study["pairs"]["compare"][1]
    context = benchmarks.Context(tmp_path, {"this": ROOT}, 1)
    equal, slowed = benchmarks.pairs(context, **study)
    assert slowed.what == "slowed by 100 %"
    assert equal.what == "A/A pair"
    assert equal.series.seeds == slowed.series.seeds == 1


def test_beside_another_model_the_time_of_a_model_is_its_own(launch, told):
    """Of both together it is that of the slower one."""
    both = training.cell("concurrent", 2, beside={"simple_cnn": {}})
    swin, cnn = training.cell(), training.cell(model="simple_cnn")
    for sides, steps_take in (((both, swin), [1.0, 1.0]), ((both, swin, cnn), [7.0, 1.0, 7.0])):
        it = launch(*sides, root=told)
        made = measured(it)
        steps = [side["steps"] for side in made["sides"]]
        found = {each["side"]: each["seconds"] / steps[each["side"]] for each in made["slices"]}
        assert [found[side] for side in sorted(found)] == steps_take
        shutil.rmtree(it.folder)
        shutil.rmtree(it.temporary)
