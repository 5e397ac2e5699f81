"""While a cell trains, every thread of its ranks stays on the cores that the cell locked."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

import training
from launched import Launched, wait_for
from parbench import strategies

WITH = {"gpipe": {"balance": [1, 1]}, "concurrent": {"beside": {"simple_cnn": {}}}}
TRAINING = [name for name in strategies.names() if any(strategies.load(name).certified())]


def case(name: str):
    """Return a strategy's name as a case; a library that is not here is skipped."""
    library = name if name in ("horovod", "deepspeed") else "torch"
    lacking = importlib.util.find_spec(library) is None
    skip = pytest.mark.skipif(lacking, reason=f"{library} is not installed")
    return pytest.param(name, marks=[skip, *([pytest.mark.whole] * (name == "deepspeed"))])


def allowed(process: int) -> dict[str, set[int]]:
    """Return the cores that each thread of a process may use, by the thread's name and number."""
    threads = {}
    for thread in Path(f"/proc/{process}/task").iterdir():
        name = (thread / "comm").read_text().strip()
        threads[f"{name} {thread.name}"] = os.sched_getaffinity(int(thread.name))
    return threads


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("name", [case(name) for name in TRAINING])
def test_no_thread_of_a_rank_runs_outside_its_cores(digits, tmp_path, name):
    value = training.cell(name, 1 if name == "eager" else 2, epochs=10_000, **WITH.get(name, {}))
    it = Launched(value, digits, tmp_path)
    process = it.start()
    ranks = strategies.of(value).ranks_per_node

    def trains() -> bool:
        beats = it.beats().values()
        return len(beats) == ranks and all(beat["phase"] == "training" for beat in beats)

    try:
        wait_for(lambda: trains() or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        threads = [allowed(beat["pid"]) for beat in it.beats().values()]
    finally:
        for each in it.processes():
            each.kill()
    width = value.hardware.devices // ranks
    for own in threads:
        (cores,) = {frozenset(each) for each in own.values()}  # the same for all of them
        assert len(cores) == width, own
    assert len(set().union(*(each for own in threads for each in own.values()))) == width * ranks
