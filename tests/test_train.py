"""One loop for every strategy: the same mathematics, true metrics, and resumed runs that end alike.

Cells are trained by `parbench train`, as a launcher starts it.
"""

from __future__ import annotations

import importlib.util
import json
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    precision_recall_fscore_support,
    recall_score,
)

import as_json
from parbench import models, packages, strategies
from parbench.measure import clocks, scores
from parbench.strategies import eager
from parbench.training import evaluation, loop, train
from parbench.training.progress import Heartbeat, is_out_of_memory
from parbench.training.run import Run
from require import require_package
from training import altered, cell, kept, learned, run
from workspace import ROOT

# One cell per strategy. Below, a checkpoint after each step: any may be the last.
CASES = {
    "eager": cell(),
    "gpipe": cell("gpipe", 2, balance=[1, 1], chunks=4),
    "ddp": cell("ddp", 2),
    "ddp of 3": cell("ddp", 3, evaluation_batch=33),  # one rank has a batch less
    "horovod": cell("horovod", 2),
    "fsdp": cell("fsdp", 2),
    "pipeline": cell("pipeline", 2),
    "deepspeed": cell("deepspeed", 2, stage=3),
    "concurrent": cell("concurrent", 2, beside={"simple_cnn": {}}),
    "accumulating": cell("ddp", 2, gradient_accumulation=2),
    "disk": cell(input="disk", gradient_accumulation=2),
}
# Stages 0 and 3 on the first rank, with the input and the loss, 1 and 2 on the second.
DEEPER = {"options": {**cell().model.options, "depths": [2, 2]}}
CASES["deeper"] = altered(CASES["eager"], model=DEEPER)
CASES["zbv"] = altered(cell("pipeline", 2, schedule="zbv", stages_per_rank=2), model=DEEPER)


def built(value):
    return models.load(value.model.name).build(10, value.training.image_size, value.model.options)


ADAMW = {"optimizer": "adamw", "schedule": "cosine", "learning_rate": 0.003}
CASES = {
    name: altered(
        value, training={**ADAMW, "mode": "deterministic"}, run={"checkpoint_seconds": 1e-6}
    )
    for name, value in CASES.items()
    if value.strategy.name not in ("horovod", "deepspeed")
    or importlib.util.find_spec(value.strategy.name)
}
# With several buckets, and a profile as well: DDP takes only one communication hook.
POWERSGD = altered(
    CASES["ddp"],
    strategy={
        "options": CASES["ddp"].strategy.options
        | {"hook": "powersgd", "powersgd_rank": 2, "bucket_cap_mb": 0.01}
    },
    training={"profile": "phases"},
)


OTHERS = {"powersgd": POWERSGD}  # learn something else than eager training
if "deepspeed" in CASES:
    OTHERS["engine"] = altered(
        CASES["deepspeed"],
        strategy={"options": {"stage": 2, "mixed_precision": "engine"}},
        training={"precision": "bf16"},
    )


@pytest.fixture(scope="module")
def runs(digits, tmp_path_factory):
    """Return a function that gives metrics.json of a case, trained once."""
    done = {}

    def of(name):
        if name not in done:
            done[name] = run(CASES[name], digits, tmp_path_factory.mktemp("cell"))[0]
        return done[name]

    return of


def test_every_strategy_has_a_case():
    trained = {"horovod", "deepspeed", *(value.strategy.name for value in CASES.values())}
    trains = {name for name in strategies.names() if any(strategies.load(name).certified())}
    assert trained == trains
    require_package("deepspeed", "deepspeed")  # else its case is left out silently


# DeepSpeed compiles for a minute.
SLOW = {name: pytest.param(name, marks=pytest.mark.whole) for name in ("deepspeed",)}


@pytest.mark.parametrize("name", [SLOW.get(name, name) for name in CASES])
def test_every_strategy_computes_what_eager_does(runs, name):
    """Same weights, samples, order and loss: with LayerNorm only, the losses agree to rounding."""
    deeper = CASES[name].model == CASES["deeper"].model
    metrics, alone = runs(name), runs("deeper" if deeper else "eager")
    for ours, theirs in zip(metrics["history"], alone["history"], strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-4)
        assert ours["test_loss"] == pytest.approx(theirs["test_loss"], rel=1e-4)
    assert metrics["status"] == "ok"
    assert metrics["cell"] == CASES[name].json()
    assert metrics["steps_per_epoch"] == 5  # 217 samples in batches of 48, the last of 25
    assert metrics["train_seconds"] == pytest.approx(sum(metrics["epoch_seconds"]))
    assert metrics["samples_per_second"] == pytest.approx(2 * 217 / metrics["train_seconds"])
    assert np.array(metrics["confusion"]).sum() == 101  # the test set, each image once
    ranks = 1 if name == "concurrent" else strategies.of(CASES[name]).ranks_per_node
    assert metrics["environment"]["world_size"] == ranks
    processes = metrics["peak_memory_mib"]["processes"]
    assert [process["rank"] for process in processes] == list(range(ranks))
    for process in processes:
        parts = [process[f"{part}_mib"] for part in ("baseline", "dataset", "state")]
        assert all(parts)
        if process["mib"] is not None:  # else this kernel does not reset a peak
            assert sum(parts) < process["mib"] + 5  # of what was freed since, pages may be gone
    assert metrics["environment"]["backend"] == ("gloo" if ranks > 1 else None)
    assert metrics["startup_seconds"] > 0


def test_waiting_for_the_disk_is_a_metric(runs):
    assert 0 <= runs("disk")["disk_wait_seconds"] < runs("disk")["train_seconds"]
    assert "disk_wait_seconds" not in runs("eager")


def test_memory_of_the_state_is_what_each_rank_holds(runs):
    """Weights, gradients and AdamW's two moments: whole, half, or by stage."""

    def state(name):
        return [rank["state_mib"] for rank in runs(name)["peak_memory_mib"]["processes"]]

    model = built(CASES["eager"])
    expected = sum(4 * value.nbytes for value in model.parameters())
    expected += sum(buffer.nbytes for buffer in model.buffers())
    (whole,) = state("eager")
    assert whole == pytest.approx(expected / 2**20, rel=0.01)  # and the optimizer's steps
    assert state("ddp") == pytest.approx([whole] * 2)
    assert state("fsdp") == pytest.approx([whole / 2] * 2, rel=0.05)  # some are of odd length
    assert sum(state("pipeline")) == pytest.approx(whole)


KILLED = ("ddp", "ddp of 3")  # tests/test_kills.py has these
LIKE_OTHERS = ("accumulating", "deeper")  # nothing of theirs is kept


STOPPED = [
    name if name == "eager" else pytest.param(name, marks=pytest.mark.whole)
    for name in (*CASES, *OTHERS)
    if name not in KILLED + LIKE_OTHERS
]


@pytest.mark.parametrize("name", STOPPED)
def test_stopped_and_killed_it_ends_as_in_one_go(runs, digits, tmp_path, name):
    """To the last bit: asked to stop in its first checkpoint, then killed in its third."""
    value = OTHERS.get(name) or CASES[name]
    state, place = tmp_path / "state", f"{tmp_path}/checkpoints/0"
    state.mkdir()
    dying = {"PARBENCH_STATE": str(state), "PYTHONPATH": str(ROOT / "tests" / "dying")}
    run(value, digits, tmp_path, STOPS=f"1 {place}", **dying)
    assert json.loads((state / "stopped.json").read_text()) == kept(tmp_path)
    assert not (tmp_path / "metrics.json").exists()
    for file in state.iterdir():
        file.unlink()

    _, process = run(value, digits, tmp_path, check=False, DIES=f"3 {place}", **dying)
    assert process.returncode != 0

    metrics, _ = run(value, digits, tmp_path)
    assert len(metrics["resumed_from"]) == 2
    if name in OTHERS:  # one with a profile, which changes nothing
        plain = altered(value, training={"profile": "none"})
        whole = run(plain, digits, tmp_path / "in one go")[0]
    else:
        whole = runs(name)
    assert learned(metrics) == learned(whole)
    assert [each["model"] for each in metrics["beside"]] == list(strategies.of(value).companions)


def test_warm_up_leaves_no_trace_and_another_seed_does(runs, digits, tmp_path):
    value = altered(CASES["eager"], training={"warmup_steps": 0})
    without, process = run(value, digits, tmp_path / "a")
    assert without["weights_sha256"] == runs("eager")["weights_sha256"]
    lines = [line for line in process.stdout.splitlines() if line.startswith("epoch ")]
    assert len(lines) == 2  # one per epoch without a terminal
    other, _ = run(altered(value, seed=1), digits, tmp_path / "b")
    assert other["weights_sha256"] != without["weights_sha256"]


@pytest.mark.parametrize(
    ("strategy", "options", "tolerance"),
    [
        ("ddp", {"bucket_cap_mb": 0.01}, 1e-5),  # buckets only group the sums
        ("ddp", {"hook": "fp16"}, 1e-2),  # gradients rounded to 11 bits
        ("ddp", {"hook": "bf16"}, 3e-2),  # to 8
        ("ddp", {"hook": "powersgd"}, 0.2),  # to a matrix of rank 1
        ("horovod", {"compression": "fp16", "cycle_time_ms": 5}, 1e-2),
    ],
)
def test_communication_options(runs, digits, tmp_path, strategy, options, tolerance):
    if strategy not in CASES:
        pytest.skip("Horovod could not be built here")
    value = altered(CASES[strategy], strategy={"options": {**CASES[strategy].strategy.options}})
    value.strategy.options.update(options)
    usual = [entry["train_loss"] for entry in runs(strategy)["history"]]
    losses = [entry["train_loss"] for entry in run(value, digits, tmp_path)[0]["history"]]
    assert losses == pytest.approx(usual, rel=tolerance)
    assert (losses != usual) == bool(strategies.load(strategy).lossy(value.strategy.options))


@pytest.mark.parametrize(
    ("strategy", "own", "options"),
    [
        ("fsdp", "policy", {}),
        pytest.param("deepspeed", "engine", {"stage": 3}, marks=pytest.mark.whole),
    ],
)
def test_weights_in_bfloat16_learn_as_with_autocast(digits, tmp_path, strategy, own, options):
    if strategy not in CASES:
        pytest.skip("DeepSpeed is not installed")
    losses, small = {}, models.load("deep_cnn").SMALL  # which has BatchNorm
    for mixed in ("autocast", own):
        options = options | {"mixed_precision": mixed}
        value = cell(strategy, 2, model="deep_cnn", precision="bf16", epochs=1, **options)
        value = altered(value, model={"options": value.model.options | small})
        metrics, _ = run(value, digits, tmp_path / mixed)
        losses[mixed] = [entry["train_loss"] for entry in metrics["history"]]
    assert losses[own] == pytest.approx(losses["autocast"], rel=3e-2)


# ---------------------------------------------------------------- one rank, in this process


@pytest.fixture
def one_rank(digits):
    """Return a function that makes the run of a cell, before its first step."""

    def made(value):
        strategy = strategies.of(value)
        strategy.setup()
        return Run(value, digits, strategy, Heartbeat(0))

    return made


@pytest.mark.parametrize(
    ("samples", "steps", "sizes"), [(217, 2, [48, 48, 25]), (217, 0, []), (96, 1, [48])]
)
def test_warm_up_takes_every_size_of_batch(one_rank, samples, steps, sizes):
    made, seen = one_rank(cell(train_samples=samples)), []
    made.step = lambda batch, epoch: seen.append(len(batch))
    loop.warm_up(made, steps)
    assert seen == sizes


def test_an_untimed_evaluation_takes_every_size_of_batch(one_rank):
    """Unless an earlier epoch's evaluation has: 40 + 40 + 21 images."""
    made, seen = one_rank(cell(epochs=1, evaluation_batch=40)), []
    made.model.register_forward_pre_hook(lambda model, images: seen.append(len(images[0])))
    evaluation.evaluate(made)
    assert seen == [40, 21, 40, 40, 21]
    evaluation.evaluate(made)
    assert seen[5:] == [40, 40, 21]


@pytest.mark.parametrize(
    ("normalization", "moments"),
    [("imagenet", [(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)]), ("none", [(0, 1)] * 3)],
)
def test_images_are_normalized_as_a_source_did_it(one_rank, normalization, moments):
    made = one_rank(cell(normalization=normalization, augment=False))
    images, _ = made.augment.test_batch(0, 5)
    expected = made.data.test_images[:5].double() / 255
    for channel, (mean, std) in enumerate(moments):
        expected[:, channel] = (expected[:, channel] - mean) / std
    torch.testing.assert_close(images, expected.float())


def test_an_evaluation_waits_for_the_devices_twice(one_rank, monkeypatch):
    """At both ends, as in a pair, not after each batch."""
    made, waits = one_rank(cell(epochs=1, evaluation_batch=40)), []
    monkeypatch.setattr(clocks, "synchronize", waits.append)
    evaluation.evaluate(made)
    assert waits == [made.strategy.devices] * 2


def test_a_rank_makes_images_only_where_they_go_into_the_model(digits):
    """In a pipeline, the rank of the first stage does; all ranks get labels."""
    value, batches = cell("pipeline", 2, input="pil"), []
    for rank in (0, 1):
        strategy = strategies.of(value)
        strategy.rank, strategy.world_size, strategy.devices = rank, 2, [torch.device("cpu")]
        made = Run(value, digits, strategy, Heartbeat(0))
        batches.append(made.augment.train_batch(torch.arange(5), 0))
    (images, labels), (nothing, same) = batches
    assert images.shape == (5, 3, 32, 32)
    assert nothing.shape == (5, 0)
    assert same.equal(labels)


# ---------------------------------------------------------------- failures


def test_a_diverged_run_is_a_result_of_all_ranks(digits, tmp_path):
    metrics, _ = run(cell("ddp", 2, learning_rate=1e30, momentum=0.0), digits, tmp_path)
    assert metrics["status"] == "diverged"
    assert "training loss became" in metrics["reason"]
    assert (metrics["test_accuracy"], metrics["confusion"]) == (None, [])


@pytest.mark.parametrize("moment", ["training", "evaluation"])
def test_no_number_at_any_moment_is_divergence(digits, tmp_path, moment):
    """NaN in the last layer's bias, from the second epoch on: the first is kept."""

    class Poisoned(eager.Strategy):
        evaluations = 0

        def wrap(self, blocks):
            self.wrapped = super().wrap(blocks)
            return self.wrapped

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
                list(self.wrapped.parameters())[-1].fill_(math.nan)

    made, out = cell(), tmp_path / "metrics.json"
    train.train(made, digits, out, Poisoned(made), Heartbeat(0))
    metrics = as_json.read(out)
    assert metrics["status"] == "diverged"
    assert ("test loss" in metrics["reason"]) == (moment == "evaluation")
    assert len(metrics["history"]) == 1


def test_out_of_memory_is_recognized():
    assert is_out_of_memory(MemoryError())
    for said in (
        "[enforce fail] DefaultCPUAllocator: can't allocate memory: 2 TB",
        "CUDA out of memory. Tried to allocate 20.00 MiB.",
        "CUDA error: out of memory",  # of AcceleratorError
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "NCCL error: unhandled cuda error. Last error: Cuda failure 2 'out of memory'",
        "MPS backend out of memory (MPS allocated: 8.00 GB)",
    ):
        assert is_out_of_memory(RuntimeError(said)), said
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


# ---------------------------------------------------------------- metrics.json


def test_classification_is_as_in_scikit_learn_also_of_a_class_that_is_never_predicted():
    drawn = np.random.default_rng(0)
    truth, predicted = drawn.integers(0, 5, 200), drawn.integers(0, 4, 200)
    found = scores.classification(truth, predicted, 5)
    shares = precision_recall_fscore_support(truth, predicted, average="macro", zero_division=0)
    names = ("test_precision_macro", "test_recall_macro", "test_f1_macro")
    assert [found[name] for name in names] == pytest.approx(shares[:3])
    assert found["test_accuracy"] == pytest.approx(accuracy_score(truth, predicted))
    assert found["confusion"] == confusion_matrix(truth, predicted).tolist()
    # Specificity is the recall of not being of the class.
    kept = [recall_score(truth != one, predicted != one) for one in range(5)]
    assert found["test_specificity_macro"] == pytest.approx(np.mean(kept))


def test_versions_that_differ_from_the_lock_are_named():
    found = packages.lock_mismatch("current", {"torch": "2.11.0+cu128", "numpy": "0.1"})
    assert any(text.startswith("torch 2.11.0+cu128 instead of 2.15.0") for text in found)
