"""ResNet-101 from torchvision (He et al. 2016), by default unchanged: 7x7 stem with stride 2 and
max pooling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parbench.models import _cuts, _resnet
from parbench.models._options import number

if TYPE_CHECKING:
    from torch import nn

OPTIONS: dict[str, dict] = {
    "width_per_group": number("width of the first layer's 3x3 convolutions; it doubles", 64, 4096),
    **_resnet.STEM,
}
SMALL = {"width_per_group": 4}

# Each layer halves the side and doubles the channels, so all blocks cost about the same.
BLOCKS = _cuts.names("layer", [3, 4, 23, 3])


def cuts(stages: int, options: dict) -> list[str]:
    """Return the names of the blocks that begin the 2nd, 3rd, ... stage."""
    return _cuts.even("resnet101", "residual blocks", BLOCKS, stages)


def build(num_classes: int, image_size: int, options: dict) -> nn.Sequential:
    """Build the model: [B, 3, S, S] float -> [B, num_classes] logits."""
    from torchvision.models import resnet101

    return _resnet.build(resnet101, num_classes, options)
