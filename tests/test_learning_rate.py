"""Learning rates at any world size. tests/test_train.py shows that every strategy has the losses
of eager training, and so its samples, in training and evaluation.
"""

from __future__ import annotations

import pytest

from parbench.strategies import eager
from parbench.training.loop import Run
from parbench.training.progress import Heartbeat
from training import cell

SCHEDULES = ("constant", "cosine", "onecycle")


class Rank(eager.Strategy):
    """One of several ranks, without the others: it does not communicate."""

    def __init__(self, value, rank, world_size):
        super().__init__(value)
        self.rank, self.local_rank, self.world_size = rank, rank, world_size
        self.setup()

    @property
    def data_parallel_size(self):
        return self.world_size


def rates(digits, rule, schedule, world_size):
    """Return the learning rates that the optimizer uses by step, and those in the history."""
    value = cell(learning_rate_rule=rule, schedule=schedule, learning_rate=0.01, train_samples=100)
    run = Run(value, digits, Rank(value, 0, world_size), Heartbeat(0))
    used, step = [], run.step

    def noted(batch, epoch):
        used.append(run.optimizer.param_groups[0]["lr"])
        return step(batch, epoch)

    run.step = noted
    run.warm_up(1)  # at its own rate, and undone
    used.clear()
    run.begin()
    run.train()
    return used, [entry["learning_rate"] for entry in run.history]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rule_holds_for_every_schedule(digits, schedule):
    one, kept = rates(digits, "linear", schedule, 1)
    assert kept == [one[len(one) // 2 - 1], one[-1]]  # an epoch's last step, not the next one
    assert 0.005 < max(one) <= 0.01
    for rule, factor in (("fixed", 1), ("linear", 3)):
        three, kept = rates(digits, rule, schedule, 3)
        assert three == pytest.approx([factor * rate for rate in one])
        assert kept == [three[len(one) // 2 - 1], three[-1]]
