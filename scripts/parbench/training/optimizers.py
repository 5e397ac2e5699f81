"""Optimizers, schedules of the learning rate and the loss scaler, by the settings of a cell."""

from __future__ import annotations

import torch

from parbench.cell import Training

OPTIMIZERS = {
    "sgd": lambda parameters, rate, t: torch.optim.SGD(
        parameters, rate, momentum=t.momentum, weight_decay=t.weight_decay, **_fused(t)
    ),
    "adamw": lambda parameters, rate, t: torch.optim.AdamW(
        parameters, rate, weight_decay=t.weight_decay, **_fused(t)
    ),
}
SCHEDULES = {
    "constant": lambda optimizer, rate, steps: torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 1.0
    ),
    "cosine": lambda optimizer, rate, steps: torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, steps
    ),
    "onecycle": lambda optimizer, rate, steps: torch.optim.lr_scheduler.OneCycleLR(
        # The stated momentum holds.
        optimizer,
        rate,
        total_steps=steps,
        cycle_momentum=False,
    ),
}


def _fused(training: Training) -> dict[str, bool]:
    """Not stated unless asked for: SGD of torch 2.1 has no such argument."""
    return {"fused": True} if training.fused else {}


def grad_scaler(enabled: bool) -> torch.amp.GradScaler:
    """The loss scaler that fp16 needs; one that does nothing for other precisions."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cuda", enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)  # torch < 2.3
