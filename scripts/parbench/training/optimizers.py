"""Optimizers, learning-rate schedules and the loss scaler."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.optim import lr_scheduler

from parbench.cell import Training

OPTIMIZERS = {
    "sgd": lambda parameters, rate, t: torch.optim.SGD(
        parameters, rate, momentum=t.momentum, weight_decay=t.weight_decay, **_fused(t)
    ),
    "adamw": lambda parameters, rate, t: torch.optim.AdamW(
        parameters, rate, weight_decay=t.weight_decay, **_fused(t)
    ),
}
# Each takes the optimizer, the peak rate, the number of steps, and for `step` the steps at which it
# lowers the rate and the factor.
SCHEDULES = {
    "constant": lambda optimizer, rate, steps, lowered, factor: lr_scheduler.LambdaLR(
        optimizer, lambda step: 1.0
    ),
    "cosine": lambda optimizer, rate, steps, lowered, factor: lr_scheduler.CosineAnnealingLR(
        optimizer, steps
    ),
    "onecycle": lambda optimizer, rate, steps, lowered, factor: lr_scheduler.OneCycleLR(
        # OneCycleLR would otherwise change the configured momentum.
        optimizer,
        rate,
        total_steps=steps,
        cycle_momentum=False,
    ),
    "step": lambda optimizer, rate, steps, lowered, factor: lr_scheduler.MultiStepLR(
        optimizer, lowered, factor
    ),
}


def schedule(
    optimizer: torch.optim.Optimizer, training: Training, peak: float, steps_per_epoch: int
) -> lr_scheduler.LRScheduler:
    """Return the schedule of a whole training, whose epochs have ``steps_per_epoch`` steps.

    During the warm-up the rate rises linearly to ``peak``, from one step's share of it; then the
    schedule begins (Goyal et al. 2017).
    """
    total = training.epochs * steps_per_epoch
    rising = min(round(training.learning_rate_warmup * steps_per_epoch), total - 1)
    if rising < 2:  # a warm-up of one step begins at the peak
        rising = 0
    lowered = [round(epoch * steps_per_epoch) - rising for epoch in training.learning_rate_steps]
    following = partial(
        SCHEDULES[training.schedule],
        optimizer,
        peak,
        total - rising,
        lowered,
        training.learning_rate_factor,
    )
    if rising == 0:
        return following()
    warmup = lr_scheduler.LinearLR(optimizer, 1 / rising, total_iters=rising - 1)
    return lr_scheduler.SequentialLR(optimizer, [warmup, following()], [rising])


def _fused(training: Training) -> dict[str, Any]:
    """Return the argument `fused` only if it is set, since SGD of torch 2.1 does not accept it."""
    return {"fused": True} if training.fused else {}


def grad_scaler(enabled: bool) -> torch.amp.GradScaler:
    """Return the loss scaler for fp16; disabled, it does nothing."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cuda", enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)  # torch < 2.3
