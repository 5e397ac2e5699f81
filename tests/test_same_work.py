"""The same work, whatever the world size: evaluation and learning rates. tests/test_train.py shows
that every strategy has eager training's losses, and so its samples.
"""

from __future__ import annotations

import pytest
import torch

from parbench.strategies import eager
from parbench.training import evaluation, learning_rate
from parbench.training.loop import Run
from parbench.training.progress import Heartbeat
from training import cell

SCHEDULES = ("constant", "cosine", "onecycle")


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


# Fewer images than ranks, and no multiple of any.
@pytest.mark.parametrize(("tested", "world_size"), [(5, 1), (1, 2), (5, 7), (101, 3)])
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
    value = cell(learning_rate_rule=rule, schedule=schedule, learning_rate=0.01, train_samples=100)
    run = rank_of(value, digits, 0, world_size)
    used, step = [], run.step

    def noted(batch, epoch):
        used.append(run.optimizer.param_groups[0]["lr"])
        return step(batch, epoch)

    run.step = noted
    run.warm_up(1)  # at a rate of its own, and undone
    used.clear()
    run.begin()
    run.train()
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
