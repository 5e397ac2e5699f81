"""Two small convolutions, each pooled, and two fully connected layers (rangoju2025, Simple CNN)."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

from parbench.models import _cuts

if TYPE_CHECKING:
    from torch import nn

OPTIONS: dict[str, dict] = {}
SMALL: dict = {}

CUTS = {1: [], 2: ["conv2"], 4: ["conv2", "hidden", "output"]}
cuts = partial(_cuts.stated, "simple_cnn", CUTS)


def build(num_classes: int, image_size: int, options: dict) -> nn.Sequential:
    """Build the model: [B, 3, S, S] float -> [B, num_classes] logits."""
    from torch import nn

    def convolution(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))

    side = image_size // 2 // 2  # pooling drops the last row if the side is odd
    return nn.Sequential(
        OrderedDict(
            conv1=convolution(3, 4),
            conv2=convolution(4, 8),
            hidden=nn.Sequential(nn.Flatten(1), nn.Linear(8 * side * side, 32), nn.ReLU()),
            output=nn.Linear(32, num_classes),
        )
    )
