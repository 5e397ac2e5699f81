"""Whatever ends a cell, running it again gives the same result.

With the launcher, in deterministic mode; tests/test_checkpoint.py tests what needs no processes,
tests/test_train.py every strategy.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import as_json
import training
from launched import Launched, wait_for
from parbench.cell import Cell
from workspace import HANG_SECONDS, ROOT, Workspace


def cell_of(strategy: str, devices: int, epochs: int) -> Cell:
    """Return a cell that trains for some seconds and writes a checkpoint after each step."""
    more = {"optimizer": "adamw", "learning_rate": 0.003, "schedule": "cosine"}
    value = training.cell(strategy, devices, epochs=epochs, mode="deterministic", **more)
    model = {"options": {**training.SMALL_SWIN, "stochastic_depth": 0.3}}
    run = {"checkpoint_seconds": 1e-6, "grace_seconds": HANG_SECONDS}
    return training.altered(value, model=model, run=run)


def newest(it: Launched) -> Path | None:
    """Return the cell's newest checkpoint, or None."""
    return max(it.folder.glob("checkpoints/*.safetensors"), default=None)


def train(it: Launched, steps: int) -> subprocess.Popen:
    """Start the cell, and hold it in a write of a checkpoint, after ``steps`` more of them."""
    held, go = it.temporary / "held", it.temporary / "go"
    for path in (held, go):
        path.unlink(missing_ok=True)
    process = it.start(PYTHONPATH=str(it.root / "dying"), HOLDS=f"{steps + 1} /checkpoints/")
    wait_for(lambda: held.exists() or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process


def end(it: Launched, process: subprocess.Popen) -> int:
    """Wait until the launcher and all its ranks have ended; return the launcher's status."""
    process.communicate(timeout=HANG_SECONDS)
    wait_for(lambda: not it.processes())
    return process.returncode


def flip(path: Path, draw: random.Random) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


@pytest.fixture
def work(tmp_path):
    """Return a copy of the project whose ranks tell at once where they are, and can be killed."""
    work = Workspace(tmp_path / "work")
    work.edit("scripts/parbench/training/progress.py", "BEAT_SECONDS = 1.0", "BEAT_SECONDS = 0.0")
    # Programs take modules of a PYTHONPATH inside their own checkout alone.
    shutil.copytree(ROOT / "tests" / "dying", work.folder / "dying")
    return work


@pytest.fixture
def launched(tmp_path, digits, work):
    """Yield a function that makes a cell to launch; kill what is left of it."""
    made = []

    def make(value: Cell) -> Launched:
        made.append(Launched(value, digits, tmp_path, work.folder))
        return made[-1]

    yield make
    for process in (process for it in made for process in it.processes()):
        process.kill()


def test_a_cell_survives_all_kills(launched, digits, tmp_path):
    draw, value = random.Random("ddp"), cell_of("ddp", 2, epochs=14)
    it = launched(value)
    dying = str(it.root / "dying")
    whole = training.start(value, digits, tmp_path / "whole")  # never killed

    # Kill the launcher, and damage the newest checkpoint.
    process = train(it, draw.randint(2, 6))
    process.kill()
    end(it, process)
    damaged = newest(it)
    flip(damaged, draw)

    # Kill the rank that writes checkpoints while it writes one, which leaves a partial file.
    process = it.start(PYTHONPATH=dying, DIES=f"{draw.randint(2, 6)} /checkpoints/")
    assert end(it, process) == 1
    said = it.log.read_text()
    assert damaged.stem in said
    assert "trying the one before it" in said
    assert "checkpoint: goes on from epoch " in said
    assert "killed by signal 9 (SIGKILL)" in said

    # Kill all ranks at once, and truncate the newest checkpoint.
    process = train(it, draw.randint(2, 6))
    for beat in it.beats().values():
        os.kill(beat["pid"], signal.SIGKILL)
    assert end(it, process) == 1
    os.truncate(newest(it), draw.randrange(newest(it).stat().st_size))

    # Ask the launcher to end.
    process = train(it, draw.randint(2, 6))
    assert "trying the one before it" in it.log.read_text()
    process.terminate()
    wait_for(lambda: any(it.temporary.glob("parbench-*/*/stop")))
    (it.temporary / "go").touch()
    assert end(it, process) == 128 + signal.SIGTERM
    assert "ended by SIGTERM; a checkpoint at epoch " in it.log.read_text()

    assert end(it, it.start()) == 0, it.log.read_text()

    metrics = json.loads(it.out.read_text())
    places = [(place["epoch"], place["step"]) for place in metrics["resumed_from"]]
    assert places == sorted(places)
    assert len(places) >= 3
    assert whole.wait(HANG_SECONDS) == 0, whole.stderr.read()
    whole.communicate()
    expected = as_json.read(tmp_path / "whole" / "metrics.json")
    assert training.learned(metrics) == training.learned(expected)
    assert (metrics["status"], len(metrics["weights_sha256"])) == ("ok", 64)
    left = {path.name for path in it.folder.iterdir()}
    assert not left & {"running.json", "failed.json", "stopped.json", "checkpoints"}
    assert not [name for name in left if name.endswith(".part")]


def test_changed_code_starts_afresh(launched, work):
    it = launched(cell_of("eager", 1, epochs=4))
    process = train(it, 3)
    process.kill()
    end(it, process)
    file = "scripts/parbench/training/run.py"
    work.edit(file, "yield batch[:2], 0.0", "yield batch[:2], 0 * 1.0")
    assert end(it, it.start()) == 0
    log = it.log.read_text()
    assert "checkpoint: starts from the beginning, not from " in log
    assert "parbench.training.run changed since it was trained" in log
    metrics = as_json.read(it.out)
    assert (metrics["status"], metrics["resumed_from"]) == ("ok", None)
