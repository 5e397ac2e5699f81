"""A plain convolutional network: three blocks of two 3x3 convolutions with BatchNorm and pooling,
then two fully connected layers. The source of the study laharsh describes it only as "CNN".
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

from parbench.models import _cuts
from parbench.models._options import number, share

if TYPE_CHECKING:
    from torch import nn

BLOCKS = 3
OPTIONS: dict[str, dict] = {
    "width": number("channels of the first block; they double in each following block", 64, 4096),
    "hidden": number("width of the hidden fully connected layer", 512, 65536),
    "dropout": share("dropout before the last layer", 0.5),
}
SMALL = {"width": 8, "hidden": 16}

# Every block costs about the same: the side halves, the channels double.
CUTS = {1: [], 2: ["block3"], 3: ["block2", "block3"], 4: ["block2", "block3", "hidden"]}
cuts = partial(_cuts.stated, "cnn", CUTS)


def build(num_classes: int, image_size: int, options: dict) -> nn.Sequential:
    """Build the model: [B, 3, S, S] float -> [B, num_classes] logits."""
    from torch import nn

    def convolution(inputs: int, outputs: int) -> list[nn.Module]:
        layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    blocks, channels, side = OrderedDict(), 3, image_size
    for index in range(BLOCKS):
        width = options["width"] * 2**index
        layers = [*convolution(channels, width), *convolution(width, width), nn.MaxPool2d(2)]
        blocks[f"block{index + 1}"] = nn.Sequential(*layers)
        channels, side = width, side // 2  # pooling drops the last row if the side is odd
    hidden = nn.Linear(channels * side * side, options["hidden"])
    blocks["hidden"] = nn.Sequential(nn.Flatten(1), hidden, nn.ReLU(inplace=True))
    last = nn.Linear(options["hidden"], num_classes)
    blocks["output"] = nn.Sequential(nn.Dropout(options["dropout"]), last)
    return nn.Sequential(blocks)
