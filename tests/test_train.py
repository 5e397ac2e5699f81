"""One loop for every strategy: the same data, the same mathematics, honest metrics."""

from __future__ import annotations

import importlib.util
import math

import numpy as np
import pytest
import torch

import measure
import models
import strategies
import train
from strategies import eager
from training import SMALL_SWIN, cell, run

CASES = {
    "eager": cell(),
    "gpipe [2]": cell("gpipe", balance=[2], chunks=4),
    "gpipe [1,1]": cell("gpipe", 2, balance=[1, 1], chunks=4),
    "ddp": cell("ddp", 2),
    "ddp of 3": cell("ddp", 3),
    "horovod": cell("horovod", 2),
    "fsdp": cell("fsdp", 2),
    "pipeline": cell("pipeline", 2),
    "concurrent": cell("concurrent", 2, beside={"simple_cnn": {}}),
}
ONE_RANK = {"eager", "gpipe", "concurrent"}


@pytest.fixture(scope="module")
def runs(digits, tmp_path_factory):
    """Metrics of each case, trained once."""
    done = {}

    def of(name):
        if name not in done:
            if name == "horovod" and importlib.util.find_spec("horovod") is None:
                pytest.skip("Horovod could not be built here")
            folder = tmp_path_factory.mktemp("cell")
            done[name] = run(CASES[name], digits, folder)[0]
        return done[name]

    return of


@pytest.fixture
def one_rank(digits):
    """Eager training of a cell in this process, before its first step."""

    def made(value):
        strategy = strategies.load("eager").Strategy(value)
        strategy.setup()
        return train.Run(value, digits, strategy, train.Pulse(0))

    return made


@pytest.mark.parametrize("name", CASES)
def test_every_strategy_computes_what_eager_does(runs, name):
    """Same weights, samples, order and loss: with LayerNorm only, the losses agree to rounding."""
    metrics, eager = runs(name), runs("eager")
    for ours, theirs in zip(metrics["history"], eager["history"], strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-4)
        assert ours["test_loss"] == pytest.approx(theirs["test_loss"], rel=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_metrics_are_whole(runs, name):
    metrics = runs(name)
    assert metrics["status"] == "ok"
    assert metrics["cell"] == CASES[name]
    # 217 samples in batches of 48: the tail of 25 stands by itself
    assert metrics["steps_per_epoch"] == 5
    assert len(metrics["history"]) == len(metrics["epoch_seconds"]) == 2
    assert metrics["train_seconds"] == pytest.approx(sum(metrics["epoch_seconds"]))
    rate = 2 * 217 / metrics["train_seconds"]
    assert metrics["samples_per_second"] == pytest.approx(rate)
    confusion = np.array(metrics["confusion"])
    assert confusion.sum() == 101  # the test set, each image once
    assert metrics["test_accuracy"] == pytest.approx(np.trace(confusion) / 101)
    value = CASES[name]
    alone = value["strategy"]["name"] in ONE_RANK
    world_size = 1 if alone else value["hardware"]["devices"]
    assert metrics["environment"]["world_size"] == world_size
    assert [p["rank"] for p in metrics["peak_memory_mib"]["processes"]] == list(range(world_size))
    assert metrics["environment"]["backend"] == ("gloo" if world_size > 1 else None)
    assert metrics["startup_seconds"] > 0
    assert metrics["energy_joules"] is None


def test_warm_up_leaves_no_trace(digits, tmp_path, runs):
    without = run(cell(warmup_steps=0), digits, tmp_path)[0]
    losses = [entry["train_loss"] for entry in without["history"]]
    assert losses == [entry["train_loss"] for entry in runs("eager")["history"]]


@pytest.mark.parametrize(
    ("samples", "steps", "sizes"),
    [(217, 2, [48, 48, 25]), (217, 0, []), (217, 5, [48] * 4 + [25]), (96, 1, [48]), (25, 1, [25])],
)
def test_warm_up_takes_every_size_of_batch(one_rank, samples, steps, sizes):
    run, seen = one_rank(cell(train_samples=samples)), []
    run.step = lambda batch, epoch: seen.append(len(batch))
    run.warm_up(steps)
    assert seen == sizes


def test_an_untimed_evaluation_takes_every_size_of_batch(one_rank):
    """Where no earlier epoch's evaluation has: 40 + 40 + 21 images."""
    run, seen = one_rank(cell(epochs=1, evaluation_batch=40)), []
    run.model.register_forward_pre_hook(lambda model, images: seen.append(len(images[0])))
    run.evaluate()
    assert seen == [40, 21, 40, 40, 21]
    run.evaluate()
    assert seen[5:] == [40, 40, 21]


def test_a_rank_makes_images_only_where_they_go_into_the_model(digits):
    """The first stage's rank of a pipeline does; labels are everybody's."""
    value, batches = cell("pipeline", 2, input="pil"), []
    for rank in (0, 1):
        strategy = strategies.load("pipeline").Strategy(value)
        strategy.rank, strategy.world_size, strategy.devices = rank, 2, [torch.device("cpu")]
        run = train.Run(value, digits, strategy, train.Pulse(0))
        batches.append([run.augment.train_batch(torch.arange(5), 0), run.augment.test_batch(3, 9)])
    for (images, labels), (nothing, same) in zip(*batches, strict=True):
        assert images.shape == (len(labels), 3, 32, 32)
        assert nothing.shape == (len(labels), 0)
        assert same.equal(labels)


def test_batch_norm_statistics_of_ranks_agree_before_evaluation(digits, tmp_path):
    """Ranks that evaluated with their own running statistics would give other predictions."""
    metrics = run(cell("ddp", 2, model="resnet18", epochs=1), digits, tmp_path)[0]
    assert np.array(metrics["confusion"]).sum() == 101


@pytest.mark.parametrize(
    ("strategy", "devices", "options"),
    [
        ("eager", 1, {}),
        ("gpipe", 2, {"balance": [1, 1], "chunks": 4}),
        # Three ranks: the order in which they are added shows.
        ("ddp", 3, {}),
        ("horovod", 3, {"fusion_threshold_mb": 0}),
    ],
)
def test_deterministic_runs_end_alike_to_the_last_bit(digits, tmp_path, strategy, devices, options):
    if strategy == "horovod" and importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod could not be built here")
    # Dropout of whole blocks is drawn in training; without warm-up DDP's buckets would be others.
    value = cell(strategy, devices, mode="deterministic", warmup_steps=0, **options)
    value["model"]["options"] = {**SMALL_SWIN, "stochastic_depth": 0.3}
    first, second = (run(value, digits, tmp_path / name)[0] for name in "ab")
    assert measure.learned(first) == measure.learned(second)
    assert len(first["weights_sha256"]) == 64
    other = run({**value, "seed": 1}, digits, tmp_path / "c")[0] if strategy == "eager" else None
    assert other is None or other["weights_sha256"] != first["weights_sha256"]


def test_strategies_that_learned_the_same_have_one_digest():
    """Names of weights differ between strategies: the digest is of their values."""
    states = []
    for case in ("eager", "gpipe [1,1]"):
        value = CASES[case]
        strategy = strategies.load(value["strategy"]["name"]).Strategy(value)
        strategy.setup()
        torch.manual_seed(0)
        blocks = models.load("swin").build(10, 32, SMALL_SWIN)
        states.append(strategy.wrap(blocks).state_dict())
    assert list(states[0]) != list(states[1])
    assert measure.weights_sha256(states[0]) == measure.weights_sha256(states[1])
    next(iter(states[1].values())).view(-1)[0] += 1
    assert measure.weights_sha256(states[0]) != measure.weights_sha256(states[1])


@pytest.mark.parametrize(
    ("strategy", "options", "tolerance"),
    [
        # Buckets and fusion only group the sums: the mathematics is the same.
        ("ddp", {"bucket_cap_mb": 0.01}, 1e-5),
        ("horovod", {"fusion_threshold_mb": 0}, 1e-5),
        # Gradients rounded to 11 bits: near, and not equal.
        ("horovod", {"compression": "fp16"}, 1e-2),
    ],
)
def test_communication_options(runs, digits, tmp_path, strategy, options, tolerance):
    usual = [entry["train_loss"] for entry in runs(strategy)["history"]]
    found = run(cell(strategy, 2, **options), digits, tmp_path)[0]
    losses = [entry["train_loss"] for entry in found["history"]]
    assert losses == pytest.approx(usual, rel=tolerance)
    if options.get("compression") == "fp16":
        assert losses != usual


def test_adamw_and_schedules_run(digits, tmp_path):
    for schedule in ("cosine", "onecycle"):
        settings = {"optimizer": "adamw", "schedule": schedule, "learning_rate": 0.003}
        metrics = run(cell(**settings), digits, tmp_path / schedule)[0]
        assert metrics["history"][-1]["learning_rate"] < 0.003


def test_bf16_runs(digits, tmp_path):
    metrics = run(cell(precision="bf16"), digits, tmp_path)[0]
    assert metrics["status"] == "ok"


@pytest.mark.parametrize("strategy", ["eager", "ddp"])
def test_a_diverged_run_is_a_result(digits, tmp_path, strategy):
    value = cell(strategy, 2 if strategy == "ddp" else 1, learning_rate=1e30, momentum=0.0)
    metrics, _ = run(value, digits, tmp_path)
    assert metrics["status"] == "diverged"
    assert "training loss became" in metrics["reason"]
    assert metrics["test_accuracy"] is None
    assert metrics["confusion"] == []


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=["nan", "inf"])
@pytest.mark.parametrize("moment", ["training", "evaluation"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_no_number_at_any_moment_is_divergence(digits, tmp_path, value, moment, precision):
    """In the last layer's bias, from the second epoch on: the first is kept."""

    class Poisoned(eager.Strategy):
        evaluations = 0

        def wrap(self, blocks):
            self.model = super().wrap(blocks)
            return self.model

        def broadcast_buffers(self, model):  # before each evaluation
            self.evaluations += 1
            if moment == "evaluation" and self.evaluations == 2:
                self.poison()

        def reduce(self, values, op="sum"):
            if moment == "training" and self.evaluations == 1:
                self.poison()
            return values

        def poison(self):
            with torch.no_grad():
                list(self.model.parameters())[-1].fill_(value)

    made, out = cell(precision=precision), tmp_path / "metrics.json"
    train.train(made, digits, out, Poisoned(made), train.Pulse(0))
    metrics = measure.read_metrics(out)
    assert metrics["status"] == "diverged"
    assert "in epoch 2 of 2" in metrics["reason"] or "after epoch 2 of 2" in metrics["reason"]
    assert ("test loss" in metrics["reason"]) == (moment == "evaluation")
    assert metrics["test_accuracy"] is None
    assert len(metrics["history"]) == 1


def test_a_line_an_epoch_where_there_is_no_terminal(digits, tmp_path):
    _, process = run(cell(), digits, tmp_path)
    lines = [line for line in process.stdout.splitlines() if line.startswith("epoch ")]
    assert len(lines) == 2
    assert "images/s" in lines[0]
    assert "left" in lines[0]


def test_out_of_memory_is_recognised():
    assert train.Pulse(0)  # started by hand: no state folder, nothing written
    from progress import is_out_of_memory

    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 2 TB")
    )
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    assert not is_out_of_memory(ValueError("not enough memory of the past"))


def test_classification_against_a_count_by_hand():
    truth = np.array([0, 0, 1, 1, 2, 2, 2])
    predicted = np.array([0, 1, 1, 1, 2, 0, 2])
    scores = measure.classification(truth, predicted, 3)
    assert scores["confusion"] == [[1, 1, 0], [0, 2, 0], [1, 0, 2]]
    assert scores["test_accuracy"] == pytest.approx(5 / 7)
    assert scores["test_recall_macro"] == pytest.approx((1 / 2 + 1 + 2 / 3) / 3)
    assert scores["test_precision_macro"] == pytest.approx((1 / 2 + 2 / 3 + 1) / 3)
    # true negatives over all that are not of the class
    assert scores["test_specificity_macro"] == pytest.approx((4 / 5 + 4 / 5 + 4 / 4) / 3)


def test_broken_metrics_are_refused(tmp_path):
    path = tmp_path / "metrics.json"
    path.write_text("{")
    with pytest.raises(measure.ParbenchError, match="not valid JSON"):
        measure.read_metrics(path)
    path.write_text("{}")
    with pytest.raises(measure.ParbenchError, match="required property"):
        measure.read_metrics(path)


def test_versions_that_differ_from_the_lock_are_named():
    found = measure.lock_mismatch("current", {"torch": "2.11.0+cu128", "numpy": "0.1"})
    assert any(text.startswith("torch 2.11.0+cu128 instead of 2.15.0") for text in found)
