"""A plain convolutional network: three blocks of two 3x3 convolutions with BatchNorm, each pooled,
and two fully connected layers. The source of the study laharsh names a CNN and states no more.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from models import _cuts

if TYPE_CHECKING:
    from torch import nn

BLOCKS = 3
OPTIONS: dict[str, dict] = {
    "width": {
        "description": "channels of the first block; they double in each of the next",
        "type": "integer",
        "minimum": 1,
        "maximum": 4096,
        "default": 64,
    },
    "hidden": {
        "description": "width of the hidden fully connected layer",
        "type": "integer",
        "minimum": 1,
        "maximum": 65536,
        "default": 512,
    },
    "dropout": {
        "description": "before the last layer",
        "type": "number",
        "minimum": 0,
        "exclusiveMaximum": 1,
        "default": 0.5,
    },
}
SMALL = {"width": 8, "hidden": 16}

# Every block costs about the same: half the side, twice the channels.
CUTS = {1: [], 2: ["block3"], 3: ["block2", "block3"], 4: ["block2", "block3", "hidden"]}


def cuts(stages: int, options: dict) -> list[str]:
    """Names of the blocks that begin the 2nd, 3rd, ... stage."""
    return _cuts.stated("cnn", CUTS, stages)


def build(num_classes: int, image_size: int, options: dict) -> nn.Sequential:
    """[B, 3, S, S] float -> [B, num_classes] logits."""
    from torch import nn

    def convolution(inputs: int, outputs: int) -> list[nn.Module]:
        layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    row, channels, side = OrderedDict(), 3, image_size
    for number in range(BLOCKS):
        width = options["width"] * 2**number
        layers = [*convolution(channels, width), *convolution(width, width), nn.MaxPool2d(2)]
        row[f"block{number + 1}"] = nn.Sequential(*layers)
        channels, side = width, side // 2  # pooling drops an odd row
    hidden = nn.Linear(channels * side * side, options["hidden"])
    row["hidden"] = nn.Sequential(nn.Flatten(1), hidden, nn.ReLU(inplace=True))
    last = nn.Linear(options["hidden"], num_classes)
    row["output"] = nn.Sequential(nn.Dropout(options["dropout"]), last)
    return nn.Sequential(row)
