"""ConvNeXt from torchvision (Liu et al. 2022); by default its convnext_tiny.

convnext_small has ``depths: [3, 3, 27, 3]`` and ``stochastic_depth: 0.4``.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

from parbench.models import _cuts
from parbench.models._options import numbers, share

if TYPE_CHECKING:
    from torch import nn

OPTIONS: dict[str, dict] = {
    "depths": numbers("blocks of each resolution", 1000, [3, 3, 9, 3]),
    "dims": numbers("width of each resolution", 65536, [96, 192, 384, 768]),
    "stochastic_depth": share(
        "probability that the last block is skipped; rising from 0 at the first", 0.1
    ),
}
SMALL = {"depths": [1, 1, 2, 1], "dims": [8, 16, 16, 16]}

cuts = partial(_cuts.layers, "convnext", "stage", "blocks")


def build(num_classes: int, image_size: int, options: dict) -> nn.Sequential:
    """Build the model: [B, 3, S, S] float, S at least 32 -> [B, num_classes] logits."""
    from torch import nn
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    depths, dims = options["depths"], options["dims"]
    settings = [
        CNBlockConfig(width, following, depth)
        for width, following, depth in zip(dims, [*dims[1:], None], depths, strict=True)
    ]
    network: Any = ConvNeXt(
        settings, stochastic_depth_prob=options["stochastic_depth"], num_classes=num_classes
    )
    # torchvision keeps [stem, blocks, downsampling, blocks, ...] in `features`.
    blocks: OrderedDict[str, nn.Module] = OrderedDict(stem=network.features[0])
    for stage in range(1, len(depths) + 1):
        if stage > 1:
            blocks[f"downsample{stage}"] = network.features[2 * stage - 2]
        for index, block in enumerate(network.features[2 * stage - 1]):
            blocks[f"stage{stage}_{index}"] = block
    blocks["head"] = nn.Sequential(
        OrderedDict(avgpool=network.avgpool, classifier=network.classifier)
    )
    return nn.Sequential(blocks)
