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


def summed():
    """Gradients are summed over the ranks and not averaged."""
    right = ddp.Strategy.step

    def step(self, optimizer, scaler):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(self.world_size)
        right(self, optimizer, scaler)

    return mock.patch.object(ddp.Strategy, "step", step)


def other_weights():
    """One rank begins with other weights than the rest."""
    right = ddp.Strategy.wrap

    def wrap(self, blocks):
        model = right(self, blocks)
        if self.rank == 1:
            with torch.no_grad():
                next(model.parameters()).mul_(1.0001)
        return model

    return mock.patch.object(ddp.Strategy, "wrap", wrap)


def uneven_mean():
    """Every rank's mean counts alike, whatever its share of the batch."""
    right = loop.Run.share

    def share(self, batch):
        samples, weight = right(self, batch)
        return samples, weight and 1 / len(samples)

    return mock.patch.object(loop.Run, "share", share)


def forward_of_gpipe(changed):
    """GPipe's model with ``changed(strategy, model, forward)`` as its forward pass."""
    right = gpipe.Strategy.wrap

    def wrap(self, blocks):
        model = right(self, blocks)
        model.forward = changed(self, model, model.forward)
        return model

    return mock.patch.object(gpipe.Strategy, "wrap", wrap)


def dropped():
    """Of the last micro-batch comes no gradient."""

    def changed(strategy, model, forward):
        def without_last(images):
            chunks = strategy.options["chunks"]
            *kept, last = forward(images).tensor_split(chunks)
            return torch.cat([*kept, last.detach()])

        return without_last

    return forward_of_gpipe(changed)


def not_in_half():
    """Mixed precision is entered around the model, where GPipe's threads do not see it."""

    def changed(strategy, model, forward):
        for module in model.modules():
            if isinstance(module, stages.Stage):
                module.precision = "fp32"

        def around(images):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return forward(images)

        return around

    return forward_of_gpipe(changed)


PLANTED = {"nothing": contextlib.nullcontext} | {
    error.__name__: error for error in (summed, other_weights, uneven_mean, dropped, not_in_half)
}


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
