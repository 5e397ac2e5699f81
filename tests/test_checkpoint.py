"""A run that was ended goes on, and ends as if it never had been: bit for bit."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time

import pytest
import torch

import checkpoint
import faults
import loader
import measure
import models
import strategies
import train
from progress import Pulse
from resumed import Until
from strategies import eager
from training import ROOT, SMALL_SWIN, cell, run, start

# Every step may be the last: a checkpoint after each.
EACH_STEP = 1e-6


def often(strategy="eager", devices=1, **changes):
    """A cell with all that has a state, which looks up and writes after every step."""
    usual = {"optimizer": "adamw", "schedule": "cosine", "learning_rate": 0.003}
    value = cell(strategy, devices, **{"warmup_steps": 2, **usual, **changes})
    if value["model"]["name"] == "swin":  # random blocks: random states matter
        value["model"]["options"] = {**SMALL_SWIN, "stochastic_depth": 0.3}
    value["run"]["checkpoint_seconds"] = EACH_STEP
    return value


def measured(metrics):
    """What must not depend on interruptions."""
    keys = ("epoch", "train_loss", "learning_rate", "test_accuracy", "test_loss")
    history = [{key: entry[key] for key in keys} for entry in metrics["history"]]
    return metrics["status"], metrics["confusion"], history


def last(folder):
    """All that the last checkpoint of a run holds: weights, optimizer, random states."""
    path = max((folder / "checkpoints").glob("*.safetensors"))
    from safetensors.torch import load_file

    return path.name, load_file(path)


def assert_same(ours, theirs):
    """Two folders of runs: the same results, the same weights, to the last bit."""
    found, wanted = (json.loads((one / "metrics.json").read_text()) for one in (ours, theirs))
    assert measured(found) == measured(wanted)
    (name, found), (other, wanted) = last(ours), last(theirs)
    assert name == other
    assert found.keys() == wanted.keys()
    for key, value in found.items():
        assert value.equal(wanted[key]), key


@pytest.fixture
def state(tmp_path, monkeypatch):
    """The launcher's folder of a run."""
    folder = tmp_path / "state"
    folder.mkdir()
    monkeypatch.setenv("PARBENCH_STATE", str(folder))
    return folder


def here(value, data, folder, pulse=None):
    """Train in this process; whether it has a result."""
    folder.mkdir(exist_ok=True)
    strategy = strategies.load(value["strategy"]["name"]).Strategy(value)
    out = folder / "metrics.json"
    train.train(value, data, out, strategy, pulse or Pulse(0))
    return out.exists()


CASES = {
    "eager": often(),
    "no warm-up, one cycle": often(warmup_steps=0, schedule="onecycle"),
    "momentum": often(optimizer="sgd", momentum=0.9, schedule="constant"),
    "no momentum": often(optimizer="sgd", momentum=0.0),
    "batch norm": often(model="resnet18", train_samples=97),
    "gpipe [2]": often("gpipe", balance=[2], chunks=4),
    "gpipe [1,1]": often("gpipe", 2, balance=[1, 1], chunks=4, checkpoint="always"),
}


@pytest.mark.parametrize("name", CASES)
def test_stopped_anywhere(digits, tmp_path, state, name):
    """In warm-up, after a step, in evaluation: it goes on as if nothing had been."""
    value, draw = CASES[name], random.Random(name)
    assert here(value, digits, tmp_path / "whole")
    starts, ended = 1, tmp_path / "ended"
    while not here(value, digits, ended, Until(state, draw.randint(3, 6))):
        starts += 1
        stopped = json.loads((state / "stopped.json").read_text())
        newest = max((ended / "checkpoints").glob("*.json"), default=None)
        if newest is None:
            assert stopped == {"epoch": 1, "step": 0}
        else:
            assert stopped == json.loads(newest.read_text())["state"]["kept"]
        for file in state.iterdir():
            file.unlink()
    assert starts > 2
    assert_same(ended, tmp_path / "whole")
    metrics = measure.read_metrics(ended / "metrics.json")
    places = [(place["epoch"], place["step"]) for place in metrics["resumed_from"]]
    assert places == sorted(places)
    assert len(places) <= starts - 1
    assert metrics["train_seconds"] == pytest.approx(sum(metrics["epoch_seconds"]))
    assert measure.read_metrics(tmp_path / "whole" / "metrics.json")["resumed_from"] is None
    assert len(list((ended / "checkpoints").iterdir())) == 2 * checkpoint.KEPT


@pytest.mark.parametrize(
    # Horovod's ranks have running statistics of their own until they evaluate.
    ("strategy", "model"),
    [("ddp", "swin"), ("horovod", "resnet18")],
)
def test_ranks_stop_together_and_survive_a_kill(digits, tmp_path, strategy, model):
    """Stopped after a step, then one rank killed, then to the end: as in one go."""
    if strategy == "horovod" and importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod could not be built here")
    changes = {"train_samples": 97} if model != "swin" else {}
    value = often(strategy, 2, model=model, learning_rate_rule="linear", **changes)
    run(value, digits, tmp_path / "whole")
    ended, state = tmp_path / "ended", tmp_path / "state"
    state.mkdir()

    process = start(value, digits, ended, PARBENCH_STATE=str(state))
    wait_for(lambda: list((ended / "checkpoints").glob("*.json")), process)
    (state / "stop").touch()
    assert process.wait(60) == 0, process.stderr.read()
    process.communicate()
    assert json.loads((state / "stopped.json").read_text()) == kept(ended)
    assert not (ended / "metrics.json").exists()

    for file in state.iterdir():
        file.unlink()
    before = kept(ended)
    process = start(value, digits, ended, PARBENCH_STATE=str(state))
    wait_for(lambda: kept(ended) != before and (state / "rank1.heartbeat").exists(), process)
    rank = json.loads((state / "rank1.heartbeat").read_text())["pid"]
    os.kill(rank, signal.SIGKILL)
    assert process.wait(120) != 0
    process.communicate()

    metrics, _ = run(value, digits, ended)
    assert len(metrics["resumed_from"]) == 2
    assert_same(ended, tmp_path / "whole")


def test_parts_of_a_model_are_kept_by_all_ranks(digits, tmp_path):
    """Each rank has weights and an optimizer of its own: a checkpoint holds those of all."""
    pipeline = {"schedule": "1f1b"}
    values = {
        "fsdp": often("fsdp", 2),
        "pipeline": often("pipeline", 2, **pipeline),
        # Running statistics, too.
        "batch norm": often("pipeline", 2, model="deep_cnn", train_samples=97, **pipeline),
    }
    values["pipeline"]["training"]["schedule"] = "cosine"  # which is another one
    values["batch norm"]["model"]["options"] = models.load("deep_cnn").SMALL
    for name, value in values.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "cell.json").write_text(json.dumps(value))
    words = strategies.load("fsdp").launcher(values["fsdp"], sys.executable)
    words += ["tests/resumed.py", str(digits), *(str(tmp_path / name) for name in values)]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in values:
        ended = tmp_path / name / "ended"
        assert_same(ended, tmp_path / name / "whole")
        assert len(measure.read_metrics(ended / "metrics.json")["resumed_from"]) >= 2


def test_each_step_is_timed_once(digits, tmp_path, state, monkeypatch):
    """By a clock that only steps and evaluation make go: a run that is interrupted has the time of
    its steps, not more.
    """
    clock, step, test_batch = [0.0], train.Run.step, loader.Augment.test_batch

    def timed(self, batch, epoch):
        clock[0] += 1.0
        return step(self, batch, epoch)

    def evaluated(self, start, stop):
        clock[0] += 100.0
        return test_batch(self, start, stop)

    monkeypatch.setattr(train.Run, "step", timed)
    monkeypatch.setattr(loader.Augment, "test_batch", evaluated)
    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock[0])
    value = often(warmup_steps=1)
    while not here(value, digits, tmp_path, Until(state, 5)):
        for file in state.iterdir():
            file.unlink()
    metrics = measure.read_metrics(tmp_path / "metrics.json")
    assert len(metrics["resumed_from"]) >= 2
    assert metrics["epoch_seconds"] == [float(metrics["steps_per_epoch"])] * 2
    assert metrics["train_seconds"] == 2 * metrics["steps_per_epoch"]


def test_a_checkpoint_is_not_the_peak_of_training(digits, tmp_path, state, monkeypatch):
    """Of an accelerator: 20 MiB in the first part, 10 in the second, 1000 to gather the model."""
    usual, peak = [20.0], [0.0]

    def reset(devices):
        peak[0] = usual[0]

    def whole(self, tensors):
        peak[0] = 1000.0
        return tensors

    monkeypatch.setattr(measure, "peak_memory_mib", lambda devices: (1.0, list(peak)))
    monkeypatch.setattr(measure, "reset_peak_memory", reset)
    monkeypatch.setattr(eager.Strategy, "whole", whole)
    assert not here(often(), digits, tmp_path, Until(state, 6))
    (state / "stop").unlink()
    usual[0] = 10.0
    assert here(often(), digits, tmp_path)
    metrics = measure.read_metrics(tmp_path / "metrics.json")
    assert len(metrics["resumed_from"]) == 1
    assert metrics["peak_memory_mib"]["devices"] == [{"device": "cuda:0", "rank": 0, "mib": 20.0}]


def test_another_cell_in_the_same_folder_starts_afresh(digits, tmp_path, state, capsys):
    folder = tmp_path / "cell"
    assert not here(often(), digits, folder, Until(state, 6))
    (state / "stop").unlink()
    assert here(often(learning_rate=0.001), digits, folder)
    assert "starts afresh: the settings changed since" in capsys.readouterr().out
    assert measure.read_metrics(folder / "metrics.json")["resumed_from"] is None


def test_started_by_hand_nobody_asks_for_the_end(digits, tmp_path, monkeypatch):
    monkeypatch.delenv("PARBENCH_STATE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stop").touch()
    value = cell()
    assert here(value, digits, tmp_path / "cell")
    assert not (tmp_path / "cell" / "checkpoints").exists()  # it was over before one was due


def kept(folder):
    """The place of the newest checkpoint that stands."""
    with contextlib.suppress(OSError, ValueError):
        newest = max((folder / "checkpoints").glob("*.json"))
        return json.loads(newest.read_text())["state"]["kept"]
    return None


def wait_for(there, process):
    """Wait until ``there()``, while the process runs."""
    end = time.monotonic() + 120
    while not there():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


# ---------------------------------------------------------------- the files


KEY = {"the settings": "a", "the code": "b", "the image": None, "the dataset": "d"}
STATE = {"kept": {"epoch": 1, "step": 1}}


@pytest.fixture
def store(tmp_path):
    """Two checkpoints, of 1 and 2 steps."""
    store = checkpoint.Store(tmp_path / "checkpoints", KEY)
    for number in (1, 2):
        store.write(number, {"weight": torch.full((100,), float(number))}, STATE)
    return store


def test_the_last_two_are_kept(store):
    store.write(3, {"weight": torch.zeros(1)}, STATE)
    names = sorted(path.name for path in store.folder.iterdir())
    endings = ("json", "safetensors")
    assert names == [f"000000000{number}.{ending}" for number in (2, 3) for ending in endings]
    assert store.find() == 3
    assert store.tensors(3)["weight"].tolist() == [0.0]


@pytest.mark.parametrize("ending", checkpoint.ENDINGS)
@pytest.mark.parametrize("damage", ["truncated", "flipped", "gone"])
def test_damage_is_said_and_the_older_one_serves(store, capsys, ending, damage):
    path = store.folder / f"0000000002.{ending}"
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(content[:-7])
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()
    assert store.find() == 1
    assert store.tensors(1)["weight"].tolist() == [1.0] * 100
    said = capsys.readouterr().out
    # Without its JSON a checkpoint was never finished: nothing to say.
    assert ("the one before it" in said) == ((ending, damage) != ("json", "gone"))
    assert sorted(path.stem for path in store.folder.iterdir()) == ["0000000001"] * 2


def test_a_pickle_is_refused_also_with_the_right_digest(store, tmp_path, capsys):
    faults.forge_pickle(store.folder / "0000000002.json", tmp_path / "unpickled")
    assert store.find() == 1
    assert "0000000002.safetensors holds no tensors" in capsys.readouterr().out
    faults.forge_pickle(store.folder / "0000000001.json", tmp_path / "unpickled")
    assert store.find() is None
    assert "starts afresh: " in capsys.readouterr().out
    assert not (tmp_path / "unpickled").exists()


def test_tensors_outlive_their_file(store):
    weight = store.tensors(2)["weight"]
    os.truncate(store.folder / "0000000002.safetensors", 0)  # a mapped file would now kill us
    assert weight.tolist() == [2.0] * 100


def test_every_flipped_byte_is_found(store):
    for ending in checkpoint.ENDINGS:
        path = store.folder / f"0000000002.{ending}"
        content = path.read_bytes()
        for place in range(0, len(content), 5):
            path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
            with pytest.raises(checkpoint.Damaged):
                store._record(2)
        path.write_bytes(content)
    assert store.find() == 2


@pytest.mark.parametrize("name", KEY)
def test_what_changed_is_said_and_nothing_is_left(store, capsys, name):
    other = checkpoint.Store(store.folder, {**KEY, name: "other"})
    assert other.find() is None
    assert f"starts afresh: {name} changed since" in capsys.readouterr().out
    assert not store.folder.exists()


def test_the_key_is_of_all_that_a_cell_rests_on():
    value = often()
    environment = {"code_digest": "c", "image": None, "python": "3", "packages": {}}
    environment["dataset_digest"] = "d"
    key = checkpoint.key(value, environment)
    again = {**value, "run": {**value["run"], "timeout_seconds": 9}}
    assert checkpoint.key(again, environment) == key
    assert checkpoint.key({**value, "seed": 1}, environment) != key
    for name in environment:
        assert checkpoint.key(value, {**environment, name: "other"}) != key


KILLED = """
import os, signal, sys, torch
sys.path.insert(0, "scripts")
import checkpoint
renames, real = int(sys.argv[2]), os.replace
def replace(*arguments):
    global renames
    renames -= 1
    if renames < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*arguments)
os.replace = replace
from pathlib import Path
store = checkpoint.Store(Path(sys.argv[1]), {})
for number in (1, 2):
    store.write(number, {"weight": torch.full((100,), float(number))}, {})
"""


@pytest.mark.parametrize(("renames", "found"), [(0, None), (1, None), (2, 1), (3, 1)])
def test_killed_inside_the_write(tmp_path, renames, found):
    folder = tmp_path / "checkpoints"
    words = [sys.executable, "-c", KILLED, str(folder), str(renames)]
    assert subprocess.run(words, cwd=ROOT).returncode == -signal.SIGKILL
    store = checkpoint.Store(folder, {})
    assert store.find() == found
    assert not folder.exists() or {path.stem for path in folder.iterdir()} == {"0000000001"}
    store.write(4, {"weight": torch.zeros(3)}, {})
    assert store.find() == 4


@contextlib.contextmanager
def small_files(size):
    """No file may grow beyond ``size``: the kernel refuses, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_ends_no_training(digits, tmp_path, state, capsys):
    with small_files(20_000):  # enough for metrics.json
        assert here(often(), digits, tmp_path / "full")
    assert "none could be written" in capsys.readouterr().out
    assert not list((tmp_path / "full" / "checkpoints").iterdir())
    with small_files(20_000):
        assert not here(often(), digits, tmp_path / "stopped", Until(state, 6))
    assert json.loads((state / "stopped.json").read_text()) == {"epoch": 1, "step": 0}


# ---------------------------------------------------------------- when the ranks look up


@pytest.mark.parametrize("step_seconds", [0.001, 0.2, 3.0])
def test_ranks_look_up_about_once_a_second(monkeypatch, step_seconds):
    """Whatever a step takes, and without a message each step."""
    clock = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: clock[0])
    looks = []

    def combined(values, op):
        assert op == "max"
        looks.append(clock[0])
        return values

    lookout = checkpoint.Lookout(300, 0, combined)
    while clock[0] < 100:
        clock[0] += step_seconds
        assert not lookout.due("training")
    late = [time for time in looks if time > 10]
    gaps = [after - before for before, after in itertools.pairwise(late)]
    assert max(gaps) <= max(1.1, step_seconds * 1.1)
    assert min(gaps) >= min(0.5, step_seconds)
    while not lookout.due("training"):
        clock[0] += step_seconds
    assert clock[0] == pytest.approx(300, abs=max(1.1, step_seconds))
    assert not lookout.stop
