"""ResNet-50 from torchvision (He et al. 2016), by default unchanged: 7x7 stem with stride 2 and
max pooling.
"""

from __future__ import annotations

from functools import partial
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

# Blocks that begin a stage; all stages take about the same time.
CUTS = {
    1: [],
    2: ["layer3_0"],
    4: ["layer2_0", "layer3_0", "layer3_4"],
}
cuts = partial(_cuts.stated, "resnet50", CUTS)


def build(num_classes: int, image_size: int, options: dict) -> nn.Sequential:
    """Build the model: [B, 3, S, S] float -> [B, num_classes] logits."""
    from torchvision.models import resnet50

    return _resnet.build(resnet50, num_classes, options)
