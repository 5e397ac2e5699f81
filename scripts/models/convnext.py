"""ConvNeXt of torchvision (Liu et al. 2022), tiny or small."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from models import _cuts

if TYPE_CHECKING:
    from torch import nn

# Blocks of each resolution, and the probability that the last one is skipped, as torchvision has
# them.
SIZES = {"tiny": ([3, 3, 9, 3], 0.1), "small": ([3, 3, 27, 3], 0.4)}

OPTIONS: dict[str, dict] = {
    "size": {
        "description": "tiny (18 blocks) or small (36 blocks)",
        "enum": list(SIZES),
        "default": "tiny",
    },
    "width": {
        "description": "channels of the first resolution; they double at each of the next",
        "type": "integer",
        "minimum": 1,
        "maximum": 4096,
        "default": 96,
    },
}
SMALL = {"width": 6}


def _names(size: str) -> list[str]:
    """Names of the blocks: resolution and index."""
    depths, _ = SIZES[size]
    return [
        f"stage{stage}_{index}" for stage, depth in enumerate(depths, 1) for index in range(depth)
    ]


def cuts(stages: int, options: dict) -> list[str]:
    """Names of the blocks that begin the 2nd, 3rd, ... stage.

    Every block costs about the same: a downsampling quarters the pixels and doubles the channels.
    """
    size = options["size"]
    return _cuts.even(f"convnext {size}", "blocks", _names(size), stages)


def build(num_classes: int, image_size: int, options: dict) -> nn.Sequential:
    """[B, 3, S, S] float -> [B, num_classes] logits."""
    from torch import nn
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    depths, stochastic_depth = SIZES[options["size"]]
    widths = [options["width"] * 2**stage for stage in range(len(depths))]
    settings = [
        CNBlockConfig(width, following, depth)
        for width, following, depth in zip(widths, [*widths[1:], None], depths, strict=True)
    ]
    model = ConvNeXt(settings, stochastic_depth_prob=stochastic_depth, num_classes=num_classes)
    # torchvision keeps [stem, blocks, downsampling, blocks, ...] in `features`.
    row = OrderedDict(stem=model.features[0])
    for stage in range(1, len(depths) + 1):
        if stage > 1:
            row[f"downsampling{stage - 1}"] = model.features[2 * stage - 2]
        for index, block in enumerate(model.features[2 * stage - 1]):
            row[f"stage{stage}_{index}"] = block
    row["head"] = nn.Sequential(OrderedDict(avgpool=model.avgpool, classifier=model.classifier))
    return nn.Sequential(row)
