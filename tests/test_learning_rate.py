"""Learning rates on any number of ranks.

tests/test_train.py shows that every strategy has the losses of eager training, and therefore sees
the same samples, in training and evaluation.
"""

from __future__ import annotations

import pytest

from parbench.errors import ParbenchError
from parbench.plan import consistency
from parbench.strategies import eager
from parbench.training import loop
from parbench.training.companions import Companions
from parbench.training.progress import Heartbeat
from parbench.training.run import Run
from training import cell

SCHEDULES = ("constant", "cosine", "onecycle", "step")


class Rank(eager.Strategy):
    """One of several ranks, without the others: it does not communicate."""

    def __init__(self, value, rank, world_size):
        super().__init__(value)
        self.rank, self.local_rank, self.world_size = rank, rank, world_size
        self.setup()

    @property
    def data_parallel_size(self):
        return self.world_size


def rates(digits, rule, schedule, world_size, **settings):
    """Return the learning rates that the optimizer uses by step, and those in the history."""
    if schedule == "step":
        settings = {"learning_rate_steps": [1], **settings}
    settings |= {"learning_rate_rule": rule, "schedule": schedule, "learning_rate": 0.01}
    value = cell(train_samples=100, **settings)
    run = Run(value, digits, Rank(value, 0, world_size), Heartbeat(0))
    used, step = [], run.step

    def noted(batch, epoch):
        used.append(run.optimizer.param_groups[0]["lr"])
        return step(batch, epoch)

    run.step = noted
    loop.warm_up(run, 1)  # at its own rate, and undone
    used.clear()
    loop.begin(run)
    loop.train(run, Companions(run))
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


def test_a_rate_falls_after_the_stated_epochs(digits):
    settings = {"epochs": 3, "global_batch": 20, "learning_rate_factor": 0.5}
    used, _ = rates(digits, "fixed", "step", 1, learning_rate_steps=[1, 1.6], **settings)
    assert used == pytest.approx([0.01] * 5 + [0.005] * 3 + [0.0025] * 7)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "step"])
def test_a_rate_rises_evenly_before_its_schedule(digits, schedule):
    settings = {"epochs": 3, "global_batch": 20, "learning_rate_warmup": 0.8}
    steps = {"learning_rate_steps": [2]} if schedule == "step" else {}
    used, _ = rates(digits, "fixed", schedule, 1, **settings, **steps)
    assert used[:4] == pytest.approx([0.0025, 0.005, 0.0075, 0.01])
    assert used[4] == pytest.approx(0.01)
    assert used[9:11] == pytest.approx({"step": [0.01, 0.001]}.get(schedule, used[9:11]))
    assert used == sorted(used[:5]) + sorted(used[5:], reverse=True)
    assert len(used) == 15


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"schedule": "step"}, "needs the epochs after which the rate falls"),
        ({"learning_rate_steps": [1]}, "no other schedule takes them"),
        ({"schedule": "step", "learning_rate_steps": [1, 1]}, "choose ascending epochs"),
        ({"schedule": "step", "learning_rate_steps": [2]}, "before the last of 2"),
        ({"learning_rate_warmup": 2}, "choose fewer epochs than the training's 2"),
        ({"schedule": "onecycle", "learning_rate_warmup": 1}, "has its own warm-up"),
    ],
)
def test_a_schedule_that_contradicts_itself_is_refused(settings, problem):
    with pytest.raises(ParbenchError, match=problem):
        consistency.check_cell(cell(**settings), None, "here", "swin", "images")


@pytest.mark.parametrize(("warmup", "rising"), [(0.2, 0), (2.99, 14)])
def test_a_warm_up_of_one_step_is_none_and_of_all_leaves_one(digits, warmup, rising):
    settings = {"epochs": 3, "global_batch": 20, "learning_rate_warmup": warmup}
    used, _ = rates(digits, "fixed", "cosine", 1, **settings)
    plain, _ = rates(digits, "fixed", "cosine", 1, epochs=3, global_batch=20)
    assert used == pytest.approx(
        plain if rising == 0 else [0.01 * step / rising for step in range(1, 15)] + [0.01]
    )
