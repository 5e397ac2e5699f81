"""A residual network for small images: 3x3 stem, four layers of BasicBlocks, global average pooling
(rangoju2025, Deep CNN). By default a ResNet-18 without the stem's stride and pooling.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

from parbench.models import _cuts
from parbench.models._options import number, numbers

if TYPE_CHECKING:
    from torch import nn

OPTIONS: dict[str, dict] = {
    "depths": numbers("residual blocks of each of the four layers", 100, [2, 2, 2, 2]),
    "width": number("channels of the first layer; they double in each following layer", 64, 4096),
}
SMALL = {"width": 8, "depths": [1, 1, 1, 1]}

cuts = partial(_cuts.layers, "deep_cnn", "layer", "residual blocks")


def build(num_classes: int, image_size: int, options: dict) -> nn.Sequential:
    """Build the model: [B, 3, S, S] float -> [B, num_classes] logits."""
    from torch import nn
    from torchvision.models.resnet import BasicBlock

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        shortcut = None
        if stride > 1:
            shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        return BasicBlock(inputs, outputs, stride, shortcut)

    width = options["width"]
    convolution = nn.Conv2d(3, width, 3, padding=1, bias=False)
    blocks: OrderedDict[str, nn.Module] = OrderedDict(
        stem=nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU(inplace=True))
    )
    for layer, depth in enumerate(options["depths"], 1):
        for index in range(depth):
            begins = layer > 1 and index == 0
            inputs, width = width, width * 2 if begins else width
            blocks[f"layer{layer}_{index}"] = block(inputs, width, 2 if begins else 1)
    blocks["head"] = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(width, num_classes)
    )
    network = nn.Sequential(blocks)
    for module in network.modules():  # the initialization of torchvision's ResNets
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network
