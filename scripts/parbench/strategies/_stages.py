"""Group a model's blocks into stages, which a strategy places on devices."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Stage(nn.Sequential):
    """Consecutive blocks that one device runs, taking one tensor and returning one.

    Autocast is entered here and not around the model: it is thread-local, so GPipe's worker threads
    (and its recomputation) would silently run in float32.
    """

    def __init__(self, blocks: OrderedDict[str, nn.Module], precision: str, device_type: str):
        super().__init__(blocks)
        self.precision = precision
        self.device_type = device_type

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Run the blocks in sequence, in this stage's precision."""
        context = (
            contextlib.nullcontext()
            if self.precision == "fp32"
            else torch.autocast(self.device_type, dtype=DTYPES[self.precision])
        )
        with context:
            return super().forward(value)


def group(
    blocks: nn.Sequential, cuts: Sequence[str], precision: str, device_type: str
) -> nn.Sequential:
    """Group named ``blocks`` into ``len(cuts) + 1`` stages; each name in ``cuts`` begins one.

    Returns an ``nn.Sequential`` of Stage with the same parameters in the same order.
    """
    stages: list[OrderedDict[str, nn.Module]] = [OrderedDict()]
    for name, block in blocks.named_children():
        if name in cuts:
            stages.append(OrderedDict())
        stages[-1][name] = block
    if len(stages) != len(cuts) + 1:
        raise ValueError(f"cuts {list(cuts)} are not all among the blocks")  # a model file's bug
    return nn.Sequential(*(Stage(stage, precision, device_type) for stage in stages))
