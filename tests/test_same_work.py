"""The same work, whatever the strategy and the world size: samples, steps, rates, evaluation."""

from __future__ import annotations

import collections
import hashlib
import importlib.util
import json
import os
import subprocess

import pytest
import torch

from fed import fed
from parbench import strategies
from parbench.strategies import eager
from parbench.training import evaluation, learning_rate
from parbench.training.loop import Run
from parbench.training.progress import Display, Heartbeat
from training import ROOT, cell, starter

SAMPLES, TESTED = 217, 101  # four batches of 48 and an uneven tail of 25; an odd test set
SCHEDULES = ("constant", "cosine", "onecycle")


def linear(strategy="eager", devices=1, **changes):
    """A cell whose rate grows with its ranks and changes after every step."""
    usual = {"learning_rate_rule": "linear", "schedule": "onecycle", "learning_rate": 0.01}
    return cell(strategy, devices, **{**usual, **changes})


CASES = {
    "gpipe": linear("gpipe", 2, balance=[1, 1], chunks=4, checkpoint="never"),
    "ddp": linear("ddp", 3),
    "horovod": linear("horovod", 2),
}


@pytest.fixture(scope="module")
def alone(digits):
    """What eager training was fed."""
    return fed(linear(), digits)


def of_ranks(name, data, folder):
    """What each rank of a case was fed."""
    value = CASES[name]
    if name == "gpipe":  # one process
        return [fed(value, data)]
    if name == "horovod" and importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod could not be built here")
    (folder / "cell.json").write_text(json.dumps(value.json()))
    words = starter(value)
    paths = os.pathsep.join(str(ROOT / part) for part in ("scripts", "tests"))
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    words += ["tests/fed.py", str(data), str(folder)]
    subprocess.run(words, cwd=ROOT, env=variables, check=True, timeout=300)
    return [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9].json"))]


def digests(runs):
    """By (part, epoch, step): a digest of the samples of all ranks, whoever got them."""
    batches = collections.defaultdict(list)
    for run in runs:
        for part, epoch, step, *sample in run["rows"]:
            batches[part, epoch, step].append(sample)
    return {
        place: hashlib.sha256(json.dumps(sorted(samples)).encode()).hexdigest()
        for place, samples in batches.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_every_strategy_is_fed_the_same(alone, digits, tmp_path, name):
    runs = of_ranks(name, digits, tmp_path)
    ranks = strategies.of(CASES[name]).data_parallel_size
    assert [run["rank"] for run in runs] == list(range(ranks))
    assert digests(runs) == digests([alone])
    # Nobody idles: the shares of a batch are alike.
    sizes = [len(run["rows"]) for run in runs]
    assert max(sizes) - min(sizes) <= len(digests([alone]))
    # The rate that the optimizer used last, in each epoch.
    for run in runs:
        rates = [entry["learning_rate"] for entry in run["history"]]
        assert rates == pytest.approx([ranks * e["learning_rate"] for e in alone["history"]])


def test_each_image_once_an_epoch(alone):
    """In the batches that the settings ask for; augmented anew in the second epoch."""
    fed_in = collections.Counter()
    images = collections.defaultdict(set)
    for part, epoch, step, index, _, image in alone["rows"]:
        fed_in[part, epoch, step] += 1
        images[part, epoch].add((index, image))
    assert [fed_in["train", 1, step] for step in range(5)] == [48, 48, 48, 48, 25]
    for epoch in (0, 1):
        assert sorted(index for index, _ in images["train", epoch]) == list(range(SAMPLES))
        assert sorted(index for index, _ in images["test", epoch]) == list(range(TESTED))
    assert sum(fed_in.values()) == 2 * (SAMPLES + TESTED)
    assert images["test", 0] == images["test", 1]
    assert len(images["train", 0] & images["train", 1]) < SAMPLES / 20  # 1 of 162 by chance


class Rank(eager.Strategy):
    """One rank of several, whose sums are taken by the test."""

    def __init__(self, value, rank, world_size):
        super().__init__(value)
        self.rank, self.local_rank, self.world_size = rank, rank, world_size
        self.setup()

    @property
    def data_parallel_size(self):
        return self.world_size


class Beats(Heartbeat):
    """Counts how often a rank looked up: at a place where all must."""

    def __init__(self):
        super().__init__(0)
        self.places = []

    def beat(self, phase, epoch=0, step=0):
        self.places.append((phase, step))


def rank_of(value, data, rank=0, world_size=1):
    return Run(value, data, Rank(value, rank, world_size), Beats())


@pytest.mark.parametrize("tested", [1, 5, 101])  # fewer than ranks, and no multiple of any
@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_evaluation_counts_exactly_the_test_set(digits, tested, world_size):
    value = cell(train_samples=16, test_samples=tested, evaluation_batch=4)
    whole, loss = evaluation.evaluate(rank_of(value, digits))
    seen, predicted, losses, places = [], torch.zeros(tested, dtype=torch.int64), 0.0, []
    for rank in range(world_size):
        run = rank_of(value, digits, rank, world_size)
        test_batch = run.augment.test_batch

        def counted(start, stop, test_batch=test_batch):
            seen.extend(range(start, stop))
            return test_batch(start, stop)

        run.augment.test_batch = counted
        mine, mean = evaluation.evaluate(run)
        predicted, losses = predicted + mine, losses + mean
        places.append(run.heartbeat.places)
    assert set(seen) == set(range(tested))
    assert len(seen) < tested + world_size  # one whose share is done joins, and does not count
    assert torch.equal(predicted, whole)
    assert losses == pytest.approx(loss, rel=1e-6)
    assert all(place == places[0] for place in places)  # a rank that looks up alone would hang


# ---- the learning rate ----


def test_rules():
    for rule, factor in (("fixed", 0), ("linear", 1)):
        stated = cell(learning_rate=0.1, learning_rate_rule=rule).training
        for ranks in (1, 2, 4):
            assert learning_rate.peak(stated, ranks) == 0.1 * ranks**factor


def rates(digits, rule, schedule, world_size):
    """The rates that the optimizer uses, step by step, and those that the history keeps."""
    value = linear(learning_rate_rule=rule, schedule=schedule, train_samples=100)
    run = rank_of(value, digits, 0, world_size)
    used, step = [], run.step

    def noted(batch, epoch):
        used.append(run.optimizer.param_groups[0]["lr"])
        return step(batch, epoch)

    run.step = noted
    run.warm_up(1)  # at a rate of its own, and undone
    used.clear()
    run.begin()
    run.train(Display(False, 2, run.samples))
    return used, [entry["learning_rate"] for entry in run.history]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rule_holds_for_every_schedule(digits, schedule):
    one, kept = rates(digits, "linear", schedule, 1)
    assert kept == [one[len(one) // 2 - 1], one[-1]]  # of the last step, not of the next
    assert 0.005 < max(one) <= 0.01
    for rule, factor in (("fixed", 1), ("linear", 3)):
        three, kept = rates(digits, rule, schedule, 3)
        assert three == pytest.approx([factor * rate for rate in one])
        assert kept == [three[len(one) // 2 - 1], three[-1]]
