"""Checkpoints: one rank stopped anywhere, the files, and when ranks check for a stop."""

from __future__ import annotations

import itertools
import json
import random
import resource
from pathlib import Path

import pytest
from safetensors.torch import load_file

import as_json
from parbench import strategies
from parbench.data import loader
from parbench.measure import clocks, meters
from parbench.strategies import eager
from parbench.training import checkpoint, train
from parbench.training.progress import Heartbeat
from parbench.training.run import Run
from training import SMALL_SWIN, altered, cell, kept, learned

# Write a checkpoint after each step, since any may be the last.
EACH_STEP = 1e-6


def often(strategy="eager", devices=1, **changes):
    """Return a cell with every kind of state that writes a checkpoint after every step."""
    usual = {"optimizer": "adamw", "schedule": "cosine", "learning_rate": 0.003}
    value = cell(strategy, devices, **{"warmup_steps": 2, **usual, **changes})
    if value.model.name == "swin":  # random blocks: random states matter
        value = altered(value, model={"options": {**SMALL_SWIN, "stochastic_depth": 0.3}})
    return altered(value, run={"checkpoint_seconds": EACH_STEP})


def last(folder):
    """Return a run's last checkpoint: its number and all tensors (also of optimizer and RNG)."""
    path = max((folder / "checkpoints").glob("*.safetensors"))
    return path.name.split(".")[0], load_file(path)


def assert_same(ours, theirs):
    """Check that two runs have the same results and checkpoints, to the last bit."""
    found, wanted = (json.loads((one / "metrics.json").read_text()) for one in (ours, theirs))
    assert learned(found) == learned(wanted)
    (name, found), (other, wanted) = last(ours), last(theirs)
    assert name == other
    assert found.keys() == wanted.keys()
    for key, value in found.items():
        assert value.equal(wanted[key]), key


@pytest.fixture
def state(tmp_path, monkeypatch):
    """Return the folder in which the launcher would request a stop."""
    folder = tmp_path / "state"
    folder.mkdir()
    monkeypatch.setenv("PARBENCH_STATE", str(folder))
    return folder


class Until(Heartbeat):
    """A heartbeat that requests a stop at beat ``number``, by a file as the launcher does."""

    def __init__(self, state: Path, number: int):
        super().__init__(0)
        self.state, self.number = state, number

    def beat(self, phase: str, epoch: int = 0, step: int = 0) -> None:
        self.number -= 1
        if self.number == 0:
            (self.state / "stop").touch()


def here(value, data, folder, heartbeat=None):
    """Train in this process; return whether there is a result."""
    folder.mkdir(exist_ok=True)
    strategy = strategies.of(value)
    out = folder / "metrics.json"
    train.train(value, data, out, strategy, heartbeat or Heartbeat(0))
    return out.exists()


CASES = {
    "no warm-up, one cycle": often(warmup_steps=0, schedule="onecycle"),
    "no momentum, batch norm": altered(
        often(optimizer="sgd", momentum=0.0, model="deep_cnn", train_samples=97),
        model={"options": {"width": 8, "depths": [1, 1, 1, 1]}},
    ),
    "recomputation": often("gpipe", 2, balance=[1, 1], chunks=4, checkpoint="always"),
}


@pytest.mark.parametrize("name", CASES)
def test_stopped_anywhere(digits, tmp_path, state, name):
    """In warm-up, after a step, in evaluation: it continues as if it had not been stopped."""
    value, draw = CASES[name], random.Random(name)
    assert here(value, digits, tmp_path / "whole")
    starts, ended = 1, tmp_path / "ended"
    while not here(value, digits, ended, Until(state, draw.randint(3, 6))):
        starts += 1
        stopped = json.loads((state / "stopped.json").read_text())
        assert stopped == (kept(ended) or {"epoch": 1, "step": 0})
        for file in state.iterdir():
            file.unlink()
    assert starts > 2
    assert_same(ended, tmp_path / "whole")
    metrics = as_json.read(ended / "metrics.json")
    places = [(place["epoch"], place["step"]) for place in metrics["resumed_from"]]
    assert places == sorted(places)
    assert len(places) <= starts - 1
    assert metrics["train_seconds"] == pytest.approx(sum(metrics["epoch_seconds"]))
    assert as_json.read(tmp_path / "whole" / "metrics.json")["resumed_from"] is None
    assert len(list((ended / "checkpoints").iterdir())) == checkpoint.KEPT


def test_each_step_is_timed_once(digits, tmp_path, state, monkeypatch):
    """The clock advances only in steps and evaluation: an interrupted run has the time of its
    steps, not more.
    """
    clock, step, test_batch = [0.0], Run.step, loader.Augment.test_batch

    def timed(self, batch, epoch):
        clock[0] += 1.0
        return step(self, batch, epoch)

    def evaluated(self, start, stop):
        clock[0] += 100.0
        return test_batch(self, start, stop)

    monkeypatch.setattr(Run, "step", timed)
    monkeypatch.setattr(loader.Augment, "test_batch", evaluated)
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: clock[0])
    value = often(warmup_steps=1)
    while not here(value, digits, tmp_path, Until(state, 5)):
        for file in state.iterdir():
            file.unlink()
    metrics = as_json.read(tmp_path / "metrics.json")
    assert len(metrics["resumed_from"]) >= 2
    assert metrics["epoch_seconds"] == [float(metrics["steps_per_epoch"])] * 2
    assert metrics["train_seconds"] == 2 * metrics["steps_per_epoch"]


def test_a_checkpoint_is_not_the_peak_of_training(digits, tmp_path, state, monkeypatch):
    """The process has 20 MiB before the stop, 10 after it, and 1000 to gather the model."""
    usual, peak = [20.0], [0.0]

    def reset(accelerators):
        peak[0] = usual[0]
        return True

    def full_tensors(self, tensors):
        peak[0] = 1000.0
        return tensors

    monkeypatch.setattr(meters, "peak_mib", lambda accelerators: list(peak))
    monkeypatch.setattr(meters, "reset_peak", reset)
    monkeypatch.setattr(eager.Strategy, "full_tensors", full_tensors)
    assert not here(often(), digits, tmp_path, Until(state, 6))
    (state / "stop").unlink()
    usual[0] = 10.0
    assert here(often(), digits, tmp_path)
    metrics = as_json.read(tmp_path / "metrics.json")
    assert len(metrics["resumed_from"]) == 1
    (process,) = metrics["peak_memory_mib"]["processes"]
    assert process["mib"] == 20.0


def test_another_cell_in_the_same_folder_starts_afresh(digits, tmp_path, state, capsys):
    folder = tmp_path / "cell"
    assert not here(often(), digits, folder, Until(state, 6))
    (state / "stop").unlink()
    assert here(often(learning_rate=0.001), digits, folder)
    assert "training.learning_rate changed from 0.003 to 0.001" in capsys.readouterr().out
    assert as_json.read(folder / "metrics.json")["resumed_from"] is None


@pytest.fixture
def small_files():
    """Limit files to 20 kB, as on a full disk; metrics.json fits."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_ends_no_training(digits, tmp_path, state, capsys, small_files):
    assert here(often(), digits, tmp_path / "full")
    told = "none could be written to"
    assert f"checkpoint: {told} {tmp_path / 'full' / 'checkpoints'} (" in capsys.readouterr().out
    assert not list((tmp_path / "full" / "checkpoints").iterdir())
    assert not here(often(), digits, tmp_path / "stopped", Until(state, 6))
    assert json.loads((state / "stopped.json").read_text()) == {"epoch": 1, "step": 0}


# ---------------------------------------------------------------- when ranks check for a stop


@pytest.mark.parametrize("step_seconds", [0.001, 0.2, 3.0])
def test_ranks_look_up_about_once_a_second(monkeypatch, step_seconds):
    """Whatever a step takes, and without communicating at each step."""
    clock = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: clock[0])
    looks = []

    def combined(values, op):
        assert op == "max"
        looks.append(clock[0])
        return values

    checkpoint_timer = checkpoint.CheckpointTimer(300, 0, combined)
    while clock[0] < 100:
        clock[0] += step_seconds
        assert not checkpoint_timer.due("training")
    late = [time for time in looks if time > 10]
    gaps = [after - before for before, after in itertools.pairwise(late)]
    assert max(gaps) <= max(1.1, step_seconds * 1.1)
    assert min(gaps) >= min(0.5, step_seconds)
    while not checkpoint_timer.due("training"):
        clock[0] += step_seconds
    assert clock[0] == pytest.approx(300, abs=max(1.1, step_seconds))
    assert not checkpoint_timer.stop
