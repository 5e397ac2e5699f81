"""ConvNeXt of torchvision (Liu et al. 2022); the defaults are its convnext_tiny.

The small one has ``depths: [3, 3, 27, 3]`` and ``stochastic_depth: 0.4``.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from parbench.errors import ParbenchError
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
SMALLEST_IMAGE = 32  # a stem of stride 4, and three times halved


def cuts(stages: int, options: dict) -> list[str]:
    """Names of the blocks that begin the 2nd, 3rd, ... stage.

    Every block costs about the same: where the width doubles, the pixels are a quarter.
    ParbenchError when there are fewer blocks than stages.
    """
    name = f"convnext with depths {options['depths']}"
    return _cuts.even(name, "blocks", _cuts.names("stage", options["depths"]), stages)


def build(num_classes: int, image_size: int, options: dict) -> nn.Sequential:
    """[B, 3, S, S] float -> [B, num_classes] logits. ParbenchError for too small images."""
    if image_size < SMALLEST_IMAGE:
        raise ParbenchError(
            f"model convnext: image_size {image_size} leaves no pixel at the end; choose "
            f"{SMALLEST_IMAGE} or more"
        )
    from torch import nn
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    depths, dims = options["depths"], options["dims"]
    settings = [
        CNBlockConfig(width, following, depth)
        for width, following, depth in zip(dims, [*dims[1:], None], depths, strict=True)
    ]
    network = ConvNeXt(
        settings, stochastic_depth_prob=options["stochastic_depth"], num_classes=num_classes
    )
    # torchvision keeps [stem, blocks, downsampling, blocks, ...] in `features`.
    row = OrderedDict(stem=network.features[0])
    for stage in range(1, len(depths) + 1):
        if stage > 1:
            row[f"downsample{stage}"] = network.features[2 * stage - 2]
        for index, block in enumerate(network.features[2 * stage - 1]):
            row[f"stage{stage}_{index}"] = block
    row["head"] = nn.Sequential(OrderedDict(avgpool=network.avgpool, classifier=network.classifier))
    return nn.Sequential(row)
