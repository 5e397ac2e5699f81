"""Whatever ends a cell, by whatever strategy it is trained: run again, it has the same result.

Through the launcher, in deterministic mode; tests/test_checkpoint.py has what needs no processes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import faults
import training
from parbench import files
from parbench.cell import Cell
from parbench.measure import metrics_json
from workspace import ROOT, Workspace

CASES = {
    "eager": (1, {}),
    "gpipe": (2, {"balance": [1, 1], "chunks": 4}),
    "ddp": (2, {}),
    "horovod": (2, {}),
}
DYING = Path(__file__).parent / "dying"


def cell_of(strategy: str, epochs: int = 14) -> dict:
    """A cell that trains for some seconds and writes a checkpoint after each step."""
    devices, options = CASES[strategy]
    more = {"optimizer": "adamw", "learning_rate": 0.003, "schedule": "cosine"}
    value = training.cell(strategy, devices, epochs=epochs, mode="deterministic", **more, **options)
    model = {"options": {**training.SMALL_SWIN, "stochastic_depth": 0.3}}
    value = training.altered(value, model=model, run={"checkpoint_seconds": 1e-6})
    return value


class Launched:
    """A cell in a folder of its own, trained by scripts/launch.py of the project in ``root``."""

    def __init__(self, folder: Path, value: Cell, data: Path, root: Path = ROOT):
        self.folder, self.data, self.root = folder / "results" / "cells" / value.id, data, root
        self.value = value
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.leases = folder / "leases"
        files.write_json(self.folder / "cell.json", value.json())

    def start(self, **variables: str) -> subprocess.Popen:
        """Start the launcher."""
        paths = {"cell": "cell.json", "out": "metrics.json", "log": "log.txt"}
        words = [sys.executable, "scripts/launch.py", "--data", str(self.data)]
        for option, name in paths.items():
            words += [f"--{option}", str(self.folder / name)]
        own = {
            "TMPDIR": str(self.temporary),
            "PARBENCH_LEASES": str(self.leases),
            "PARBENCH_OVERSUBSCRIBE": "1",
        }
        usual = {k: v for k, v in os.environ.items() if k not in ("PARBENCH_STATE", "DIES")}
        with open(self.folder / "said.txt", "w") as said:
            return subprocess.Popen(
                words,
                cwd=self.root,
                env={**usual, **own, **variables},
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def train(self, steps: int) -> subprocess.Popen:
        """Start it, and wait until it has written as many checkpoints."""
        before = self.newest()
        process = self.start()
        self.wait_for(lambda: self.newest() >= before + steps, process)
        return process

    def newest(self) -> int:
        """The number of its newest checkpoint."""
        path = faults.newest(self.folder)
        return int(path.name.split(".")[0]) if path else 0

    def pids(self) -> dict[int, int]:
        """Its ranks that live, by number."""
        return {beat["rank"]: beat["pid"] for beat in faults.beats(self.temporary)}

    def wait_for(self, there, process=None) -> None:
        """Wait until ``there()``, while the process runs."""
        end = time.monotonic() + 120
        while not there():
            assert process is None or process.poll() is None, self.said()
            assert time.monotonic() < end
            time.sleep(0.01)

    def end(self, process: subprocess.Popen) -> int:
        """Its exit status, when all whom it started are gone, too."""
        status = process.wait(120)
        while faults.processes_of(self.temporary):
            time.sleep(0.05)
        return status

    def said(self) -> str:
        """What the launcher said, and the log."""
        log = self.folder / "log.txt"
        return (self.folder / "said.txt").read_text() + (log.read_text() if log.exists() else "")


@pytest.fixture
def launched(tmp_path, digits):
    """Makes a cell that can be launched; nothing of it is left."""
    yield lambda value, root=ROOT: Launched(tmp_path, value, digits, root)
    for pid in faults.processes_of(tmp_path / "temporary"):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("strategy", CASES)
def test_a_cell_survives_all_kills(launched, digits, tmp_path, strategy):
    if strategy == "horovod" and importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod could not be built here")
    draw = random.Random(strategy)
    it = launched(cell_of(strategy))
    whole = training.start(it.value, digits, tmp_path / "whole")  # beside it: with nobody killed

    # The launcher; and its newest checkpoint is damaged.
    process = it.train(draw.randint(2, 6))
    process.kill()
    it.end(process)
    damaged = faults.newest(it.folder)
    faults.flip(damaged, draw)

    # The rank that writes checkpoints, inside one; half of it is left.
    process = it.start(PYTHONPATH=str(DYING), DIES=f"{draw.randint(2, 6)} /checkpoints/")
    assert it.end(process) == 1
    assert f"{damaged.stem}" in it.said()
    assert "the one before it is tried" in it.said()
    assert "checkpoint: goes on from epoch " in it.said()
    assert "killed by signal 9 (SIGKILL)" in it.said()

    # All ranks at once, while the disk is full.
    process = it.train(draw.randint(2, 6))
    psutil.Process(it.pids()[0]).rlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    it.wait_for(lambda: "none could be written" in it.said(), process)
    for pid in it.pids().values():
        os.kill(pid, signal.SIGKILL)
    assert it.end(process) == 1
    faults.truncate(faults.newest(it.folder), draw)

    # The launcher is asked to end.
    process = it.train(draw.randint(2, 6))
    assert "the one before it is tried" in it.said()
    it.wait_for(lambda: any(beat["epoch"] for beat in faults.beats(it.temporary)), process)
    process.terminate()
    assert it.end(process) == 128 + signal.SIGTERM
    assert "ended by SIGTERM; a checkpoint at epoch " in it.said()

    assert it.end(it.start()) == 0, it.said()

    metrics = json.loads((it.folder / "metrics.json").read_text())
    places = [(place["epoch"], place["step"]) for place in metrics["resumed_from"]]
    assert places == sorted(places)
    assert len(places) >= 3
    assert whole.wait(120) == 0, whole.stderr.read()
    whole.communicate()
    expected = metrics_json.read(tmp_path / "whole" / "metrics.json")
    assert training.learned(metrics) == training.learned(expected)
    assert (metrics["status"], len(metrics["weights_sha256"])) == ("ok", 64)
    left = {path.name for path in it.folder.iterdir()}
    assert not left & {"running.json", "failed.json", "stopped.json", "checkpoints"}
    assert not [name for name in left if name.endswith(".part")]


def test_changed_code_starts_afresh(launched, tmp_path):
    work = Workspace(tmp_path / "work")
    it = launched(cell_of("eager", epochs=4), work.folder)
    process = it.train(3)
    process.kill()
    it.end(process)
    loop = "scripts/parbench/training/loop.py"
    work.edit(loop, "return batch[:2], 0.0", "return batch[:2], 0 * 1.0")
    assert it.end(it.start()) == 0
    assert "checkpoint: starts afresh: the code changed since " in it.said()
    metrics = metrics_json.read(it.folder / "metrics.json")
    assert (metrics["status"], metrics["resumed_from"]) == ("ok", None)
