"""Optimizers, learning-rate schedules and the loss scaler."""

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
        # OneCycleLR would otherwise change the stated momentum.
        optimizer,
        rate,
        total_steps=steps,
        cycle_momentum=False,
    ),
}


def _fused(training: Training) -> dict[str, bool]:
    """Return the argument only if it is set: SGD of torch 2.1 does not know it."""
    return {"fused": True} if training.fused else {}


def grad_scaler(enabled: bool) -> torch.amp.GradScaler:
    """Return the loss scaler for fp16; disabled, it does nothing."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cuda", enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)  # torch < 2.3
