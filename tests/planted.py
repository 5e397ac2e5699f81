"""Planted errors that a certificate of equivalence must catch.

Ranks run this file instead of `parbench trials`; the ID of a trial's cell names its error.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import torch

from parbench.__main__ import main
from parbench.equivalence import trials
from parbench.exits import run_main
from parbench.strategies import _stages as stages
from parbench.strategies import ddp, gpipe
from parbench.training.run import Run

PLANTED = {"nothing": contextlib.nullcontext}


def planted(owner, name):
    """Register the decorated function, which is passed the right one, to replace ``owner.name``."""

    def named(wrong):
        right = getattr(owner, name)

        def replaced(*arguments):
            return wrong(right, *arguments)

        PLANTED[wrong.__name__] = lambda: mock.patch.object(owner, name, replaced)

    return named


@planted(ddp.Strategy, "step")
def summed(right, strategy, optimizer, scaler):
    """Sum gradients over the ranks instead of averaging them."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.mul_(strategy.world_size)
    right(strategy, optimizer, scaler)


@planted(ddp.Strategy, "wrap")
def other_weights(right, strategy, blocks):
    """Start rank 1 with other weights than the rest."""
    model = right(strategy, blocks)
    if strategy.rank == 1:
        with torch.no_grad():
            next(model.parameters()).mul_(1.0001)
    return model


@planted(Run, "micro_batches")
def uneven_mean(right, run, batch):
    """Weight every rank's mean equally, whatever its share of the batch."""
    for samples, weight in right(run, batch):
        yield samples, weight and 1 / len(samples)


@planted(gpipe.Strategy, "wrap")
def dropped(right, strategy, blocks):
    """Drop the gradient of the last micro-batch."""
    model = right(strategy, blocks)
    forward = model.forward

    def without_last(images):
        *kept, last = forward(images).tensor_split(strategy.options["chunks"])
        return torch.cat([*kept, last.detach()])

    model.forward = without_last
    return model


def _shifted(measured):
    for gradient in measured["gradients"]:
        gradient.mul_(1.001)
    return measured


@planted(trials.TrialRun, "measure")
def kink(right, run):
    """Shift the gradients of the first batch alone, as a ReLU at zero does."""
    return _shifted(right(run)) if run.trial.batch == 1 else right(run)


@planted(trials.TrialRun, "measure")
def imprecise(right, run):
    """Shift the gradients of every batch, as a product in fewer digits does."""
    return _shifted(right(run))


@planted(gpipe.Strategy, "wrap")
def not_in_half(right, strategy, blocks):
    """Enter autocast around the model, where GPipe's threads do not see it."""
    model = right(strategy, blocks)
    for module in model.modules():
        if isinstance(module, stages.Stage):
            module.precision = "fp32"
    model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)
    return model


def plant():
    """Return a patch that makes each trial run with the error its cell's ID names."""
    right = trials.errors_of

    def errors_of(trial, strategy, work):
        with PLANTED[trial.cell.id]():
            return right(trial, strategy, work)

    return mock.patch.object(trials, "errors_of", errors_of)


if __name__ == "__main__":
    with plant():
        run_main(lambda: main(["trials", *sys.argv[1:]]))
