"""Settings that make one device faster: what contradicts them, and what they need."""

from __future__ import annotations

from collections.abc import Iterator

from parbench import models, packages
from parbench.cell import Cell
from parbench.machine import Software
from parbench.strategies._base import Strategy

LEAST_TORCH = "2.6"  # torch.compile that can be told to compile no more (torch.compiler.set_stance)
# Fused kernels on GPUs, by optimizer; elsewhere both are of one version.
FUSED_ON_CUDA = {"adamw": "2.0", "sgd": "2.3"}
FUSED_ELSEWHERE = "2.4"


def problems(cell: Cell, strategy: Strategy) -> Iterator[str]:
    """Sentences about what a cell cannot have."""
    training = cell.training
    for key, value in training.tuned.items():
        stated = f"{key} {str(value).lower()}"
        if key in strategy.REFUSES:
            default = str(getattr(type(training), key)).lower()
            yield f"{stated}: {strategy.REFUSES[key]}; choose {default}, or another strategy"
    if training.memory_format != "contiguous" and models.vocabulary(cell.model.name):
        yield f"memory_format {training.memory_format} is of images; remove it"
    if training.compile == "none":
        return
    stated = f"compile {training.compile}"
    if training.padding == "longest" and training.max_length is not None:
        yield f"{stated}: each length of a batch would be compiled; choose padding: fixed"
    if training.batch_norm == "synchronized" and strategy.data_parallel_size > 1:
        yield f"{stated}: ranks meet in the middle of a compiled pass; choose batch_norm: local"
    if training.profile == "phases":
        yield f"{stated}: a compiled pass does not tell its phases; choose another profile"
    if training.compile == "max-autotune" and training.mode == "deterministic":
        yield f"{stated}: kernels are chosen by time, which varies; choose default"


def unavailable(cell: Cell, software: Software) -> str | None:
    """What a cell's settings need and this machine's ``software``, or the stack, lacks."""
    training, reason = cell.training, None
    if training.fused:
        on_cuda = cell.hardware.device == "cuda"
        least = FUSED_ON_CUDA[training.optimizer] if on_cuda else FUSED_ELSEWHERE
        reason = packages.too_old(cell.stack, least)
    if training.compile != "none":
        reason = reason or packages.too_old(cell.stack, LEAST_TORCH) or software.without_compiler()
    return reason
