"""The operator profile of a cell, a few steps instead of epochs, and inference beside training."""

from __future__ import annotations

import pytest
import torch

import checkpoint
import measure
import strategies
import train
from errors import ParbenchError
from profiling import operators
from progress import Pulse
from training import cell

SMALL = {"train_samples": 64, "test_samples": 33, "global_batch": 16, "epochs": 1}


def trained(folder, data, **changes) -> dict:
    """metrics.json of a small cell, trained in this process."""
    value = cell(**{**SMALL, **changes})
    strategy = strategies.load(value["strategy"]["name"]).Strategy(value)
    out = folder / "metrics.json"
    train.train(value, data, out, strategy, Pulse(0))
    return measure.read_metrics(out)


@pytest.fixture(scope="module")
def profiled(digits, tmp_path_factory) -> dict:
    return trained(
        tmp_path_factory.mktemp("profiled"), digits, profile="operators", evaluation_batch=8
    )


def test_operators_of_training_and_of_inference(profiled):
    training, inference = profiled["profile"]["training"], profiled["profile"]["inference"]
    assert profiled["profile"]["kind"] == "operators"
    assert (training["steps"], inference["steps"]) == (4, 5)  # all of the epoch; the first batches
    trained_by = {each["name"]: each for each in training["operators"]}
    tested_by = {each["name"]: each for each in inference["operators"]}
    assert trained_by["Optimizer.step#SGD.step"]["calls"] == 4
    assert not any("Backward" in name or "Optimizer" in name for name in tested_by)
    # Each forward pass has one call a linear layer; a training step, its gradients beside.
    assert trained_by["aten::addmm"]["calls"] / 4 == tested_by["aten::addmm"]["calls"] / 5
    for part in (training, inference):
        own = [each["cpu_self_seconds"] for each in part["operators"]]
        assert own == sorted(own, reverse=True)
        assert len(own) <= operators.KEPT
        assert 0.9 * part["cpu_self_seconds"] < sum(own) <= part["cpu_self_seconds"] * 1.000001
        assert part["device_self_seconds"] is None
        assert all(e["cpu_self_seconds"] <= e["cpu_total_seconds"] for e in part["operators"])


class Event:
    """What torch.profiler tells of an operator or, of kind CUDA, of a kernel."""

    def __init__(self, key, kind, cpu, device, annotation=False):
        self.key, self.count, self.is_user_annotation = key, 2, annotation
        self.device_type = type("Kind", (), {"name": kind})
        self.self_cpu_time_total, self.cpu_time_total = cpu, 2 * cpu
        self.self_device_time_total, self.device_time_total = device, device


def test_kernels_count_once_with_the_operator_that_started_them():
    found = operators.summary(
        [
            Event("aten::addmm", "CPU", 3e6, 8e6),
            Event("aten::view", "CPU", 1e6, 0),
            Event("sgemm_kernel", "CUDA", 0, 8e6),
            Event("Optimizer.step", "CUDA", 0, 9e6, annotation=True),
        ],
        on_accelerator=True,
    )
    assert (found["cpu_self_seconds"], found["device_self_seconds"]) == (4, 8)
    assert [each["name"] for each in found["operators"]] == ["aten::addmm", "aten::view"]
    assert found["operators"][0]["device_self_seconds"] == 8


def test_an_instrument_changes_nothing_that_is_learned(profiled, digits, tmp_path):
    """Its checkpoint keeps what it has found."""
    plain = trained(tmp_path, digits, evaluation_batch=8)
    assert plain["weights_sha256"] == profiled["weights_sha256"]
    assert plain["profile"] is None
    assert plain["inference"]["samples"] == 33
    assert 0 < plain["inference"]["input_seconds"] < plain["inference"]["seconds"]


def test_a_few_steps_measure_speed_and_no_accuracy(digits, tmp_path):
    metrics = trained(tmp_path, digits, steps=2, evaluation_batch=8, epochs=2)
    assert metrics["steps_per_epoch"] == 2
    assert metrics["samples_per_second"] == pytest.approx(2 * 32 / metrics["train_seconds"])
    assert metrics["inference"]["samples"] == 16  # as many batches
    assert metrics["test_accuracy"] is None
    assert metrics["confusion"] == []
    assert [entry["test_accuracy"] for entry in metrics["history"]] == [None, None]
    with pytest.raises(ParbenchError, match=r"steps 5: an epoch of 64 .* has 4; choose at most 4"):
        trained(tmp_path, digits, steps=5)


def test_threads_of_a_device(digits, tmp_path):
    before = torch.get_num_threads()
    value = cell(**SMALL)
    value["hardware"]["threads"] = 2
    try:
        train.prepare(value)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_resumed_profile_keeps_what_was_found(digits, tmp_path, profiled):
    value = cell(**SMALL, profile="operators")
    strategy = strategies.load("eager").Strategy(value)
    strategy.setup()
    run = train.Run(value, digits, strategy, Pulse(0))
    found = {"training": profiled["profile"]["training"]}
    run.profile.resume(found)
    run.store = checkpoint.Store(tmp_path, {})
    assert run.profile.state() == found
    with run.profile.phase("other"), run.profile.phase("update"):
        pass
    assert run.profile.result()["training"] == found["training"]
