"""Settings that make one device faster: the same mathematics, compiled outside the timing."""

from __future__ import annotations

import gc
import importlib.util
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import as_json
from parbench import strategies
from parbench.cell import Model
from parbench.equivalence import certificate, certify, trials
from parbench.equivalence.certificate import EQUAL
from parbench.errors import ParbenchError
from parbench.plan import consistency
from parbench.software import Software
from parbench.training import compiling, progress, set_up, train
from parbench.training.progress import Heartbeat
from require import required
from training import altered, cell, learned
from workspace import HANG_SECONDS

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
        todo += trials_of("deep_cnn", "fsdp", 2, ["bf16"], {"compile": "default"})
    todo += trials_of("deep_cnn", "gpipe", 2, ["fp32"], LAST, balance=[1, 1], chunks=4)
    rows = certify.certify(todo)
    assert {row["verdict"] for row in rows} == {EQUAL}, certify.shown(rows)
    assert next(row["tuned"] for row in rows if row["strategy"] == "gpipe") == LAST


def test_micro_batches_that_are_added_up_are_the_batch():
    """Of every way to hold back the exchange; of the last batch, some micro-batches are empty."""
    todo = []
    for strategy, devices, precisions in (
        ("eager", 1, ["fp32"]),
        ("ddp", 2, ["fp32", "bf16"]),
        ("fsdp", 2, ["fp32"]),
        *((("horovod", 2, ["fp32"]),) if importlib.util.find_spec("horovod") else ()),
        *((("deepspeed", 2, ["fp32"]),) if importlib.util.find_spec("deepspeed") else ()),
    ):
        tuned = {"gradient_accumulation": 3}
        todo += trials_of("deep_cnn", strategy, devices, precisions, tuned)
    rows = certify.certify(todo)
    assert {row["verdict"] for row in rows} == {EQUAL}, certify.shown(rows)
    assert {row["batch_norm"] for row in rows} == {certificate.FROZEN}  # else not the same


def test_gradients_that_are_added_up_are_exchanged_once(digits):
    exchanges = []
    for micro_batches in (1, 3):
        value = altered(cell("ddp"), training={"gradient_accumulation": micro_batches})
        strategy = strategies.of(value)
        run, _ = set_up.set_up(value, digits, strategy, Heartbeat(0))
        batch = run.order(0)[:12]
        run.step(batch, 0)  # in which DDP makes its buckets
        with torch.profiler.profile() as recorded:
            run.step(batch, 0)
        exchanges.append([each.name for each in recorded.events() if "allreduce" in each.name])
        del run
        gc.collect()
        strategy.close()
    assert exchanges[0] == exchanges[1] != []


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


def test_a_pass_that_compiles_is_progress(monkeypatch, tmp_path):
    """max-autotune takes minutes, and the launcher would end a rank that says nothing."""
    monkeypatch.setenv("PARBENCH_STATE", str(tmp_path))
    monkeypatch.setattr(torch.compiler, "set_stance", lambda stance: None)
    monkeypatch.setattr(compiling, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(progress, "BEAT_SECONDS", 0.0)
    path, passes = tmp_path / "rank0.heartbeat", []

    def compiles():
        passes.append(None)
        deadline = time.monotonic() + HANG_SECONDS
        for _ in range(3):
            path.unlink(missing_ok=True)
            while not path.exists():
                assert time.monotonic() < deadline

    strategy = SimpleNamespace(devices=[torch.device("cpu")], reduced=lambda values, op: values)
    run = SimpleNamespace(strategy=strategy, heartbeat=Heartbeat(0))
    compiling.compile_all(run, [compiles])
    assert len(passes) == compiling.PASSES


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


def test_what_only_a_gpu_has_is_refused_elsewhere():
    tried = altered(cell(), training={"cudnn_benchmark": True})
    problem = "cudnn_benchmark applies to NVIDIA GPUs only, not cpu; remove it"
    with pytest.raises(ParbenchError, match=problem):
        consistency.check_cell(tried, None, "here", "swin", "images")
    added_up = altered(cell("gpipe", 1, balance=[2]), training={"gradient_accumulation": 2})
    with pytest.raises(ParbenchError, match=r"has its own micro-batches \(chunks\); choose 1"):
        consistency.check_cell(added_up, None, "here", "swin", "images")
    together = {"gradient_accumulation": 2, "batch_norm": "synchronized"}
    with pytest.raises(ParbenchError, match="choose local, or gradient_accumulation: 1"):
        consistency.check_cell(
            altered(cell("ddp", 2), training=together), None, "here", "swin", "images"
        )


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
