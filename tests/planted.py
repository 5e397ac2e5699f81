"""Errors that a certificate must not let pass, planted into the ranks that make it.

Run by the ranks in place of scripts/equivalence.py: a trial's cell is called by its error.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import torch

from parbench.errors import run_main
from parbench.strategies import _stages as stages
from parbench.strategies import ddp, gpipe
from parbench.training import loop
from parbench.verdicts import equivalence, trials

PLANTED = {"nothing": contextlib.nullcontext}


def planted(owner, name):
    """Make a function that does wrong, given what is right, an error in its place."""

    def named(wrong):
        right = getattr(owner, name)

        def replaced(*arguments):
            return wrong(right, *arguments)

        PLANTED[wrong.__name__] = lambda: mock.patch.object(owner, name, replaced)

    return named


@planted(ddp.Strategy, "step")
def summed(right, strategy, optimizer, scaler):
    """Gradients are summed over the ranks and not averaged."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.mul_(strategy.world_size)
    right(strategy, optimizer, scaler)


@planted(ddp.Strategy, "wrap")
def other_weights(right, strategy, blocks):
    """One rank begins with other weights than the rest."""
    model = right(strategy, blocks)
    if strategy.rank == 1:
        with torch.no_grad():
            next(model.parameters()).mul_(1.0001)
    return model


@planted(loop.Run, "share")
def uneven_mean(right, run, batch):
    """Every rank's mean counts alike, whatever its share of the batch."""
    samples, weight = right(run, batch)
    return samples, weight and 1 / len(samples)


@planted(gpipe.Strategy, "wrap")
def dropped(right, strategy, blocks):
    """Of the last micro-batch comes no gradient."""
    model = right(strategy, blocks)
    forward = model.forward

    def without_last(images):
        *kept, last = forward(images).tensor_split(strategy.options["chunks"])
        return torch.cat([*kept, last.detach()])

    model.forward = without_last
    return model


@planted(gpipe.Strategy, "wrap")
def not_in_half(right, strategy, blocks):
    """Mixed precision is entered around the model, where GPipe's threads do not see it."""
    model = right(strategy, blocks)
    for module in model.modules():
        if isinstance(module, stages.Stage):
            module.precision = "fp32"
    model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)
    return model


def plant():
    """Let each trial err as it says. Returns what puts it right again."""
    right = trials.errors_of

    def errors_of(trial, strategy, work):
        with PLANTED[trial.cell.id]():
            return right(trial, strategy, work)

    return mock.patch.object(trials, "errors_of", errors_of)


if __name__ == "__main__":
    with plant():
        run_main(equivalence.main)
