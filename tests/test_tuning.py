"""Settings that make one device faster: the same mathematics, compiled outside the timing."""

from __future__ import annotations

from dataclasses import replace

import pytest

import as_json
from parbench import strategies
from parbench.cell import Model
from parbench.equivalence import certificate, certify, trials
from parbench.equivalence.certificate import EQUAL
from parbench.plan import consistency
from parbench.software import Software
from parbench.training import train
from parbench.training.progress import Heartbeat
from require import required
from training import altered, cell, learned

LAST = {"memory_format": "channels_last", "fused": True}


def trials_of(model, strategy, devices, precisions, tuned, **options):
    value = certificate.cell_of(model, strategy, devices, options, tuned)
    return trials.trials_of(value, precisions, synchronized=False)


def test_they_compute_what_eager_training_does():
    """One trial per way in which a strategy wraps a model; of the whole, torch.compile with several
    ranks and in half precision, too."""
    todo = trials_of("deep_cnn", "ddp", 2, ["fp32"], LAST)
    if required("whole"):
        todo += trials_of("simple_cnn", "ddp", 2, ["bf16"], {**LAST, "compile": "default"})
    todo += trials_of("deep_cnn", "gpipe", 2, ["fp32"], LAST, balance=[1, 1], chunks=4)
    rows = certify.certify(todo)
    assert {row["verdict"] for row in rows} == {EQUAL}, certify.shown(rows)
    assert next(row["tuned"] for row in rows if row["strategy"] == "gpipe") == LAST


def trained(value, digits, folder, heartbeat=None):
    """Train in this process; return metrics.json, or None if it was stopped."""
    folder.mkdir(exist_ok=True)
    out = folder / "metrics.json"
    train.train(value, digits, out, strategies.of(value), heartbeat or Heartbeat(0))
    return as_json.read(out) if out.exists() else None


class Stop(Heartbeat):
    """A heartbeat that requests a stop, as the launcher does, once training has begun."""

    def __init__(self, state):
        super().__init__(0)
        self.state = state

    def beat(self, phase, epoch=0, step=0):
        if phase == "training":
            (self.state / "stop").touch()


@pytest.mark.whole
def test_a_compiled_training_that_was_stopped_ends_as_the_whole(digits, tmp_path, monkeypatch):
    """Weights keep their names, and compile time has its own number. With fused AdamW, which
    no certificate covers."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    usual = {"train_samples": 96, "evaluation_batch": 101, "optimizer": "adamw"}
    small = Model("cnn", {"width": 4, "hidden": 16, "dropout": 0})  # with BatchNorm
    plain = altered(
        replace(cell(learning_rate=0.003, **usual), model=small), run={"checkpoint_seconds": 1e-6}
    )
    value = altered(plain, training={**LAST, "compile": "default"})
    eager, whole = (trained(v, digits, tmp_path / n) for v, n in ((plain, "eager"), (value, "all")))
    assert "compile_seconds" not in eager
    assert whole["compile_seconds"] > 0  # before training: to compile within it is an error
    for ours, theirs in zip(whole["history"], eager["history"], strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-4)
    state = tmp_path / "state"
    state.mkdir()
    monkeypatch.setenv("PARBENCH_STATE", str(state))
    assert trained(value, digits, tmp_path / "ended", Stop(state)) is None
    (state / "stop").unlink()
    ended = trained(value, digits, tmp_path / "ended")
    assert ended["resumed_from"]
    assert learned(ended) == learned(whole)


def test_what_it_needs_is_a_reason_not_to_run(monkeypatch, tmp_path):
    compiled = altered(cell(), training={"compile": "default"})
    fused = altered(cell(), training={"fused": True})
    software, paper = Software(), "and stack paper has 2.1.2: choose stack: current"
    old = {"stack": "paper"}
    assert consistency.unavailable(fused, software) is None
    assert consistency.unavailable(replace(fused, **old), software) == f"needs torch 2.4, {paper}"
    reason = consistency.unavailable(replace(compiled, **old), software)
    assert reason == f"needs torch 2.6, {paper}"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "debian"})
    lacking = consistency.unavailable(compiled, software)
    assert lacking == "needs a C++ compiler: sudo apt install g++"
    assert consistency.unavailable(cell(), software) is None
