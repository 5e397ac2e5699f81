"""torchvision's ResNet-18 (He et al. 2016), by default unchanged: 7x7 stem with stride 2 and max
pooling.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from parbench.models import _cuts, _resnet

if TYPE_CHECKING:
    from torch import nn

OPTIONS: dict[str, dict] = _resnet.STEM
SMALL: dict = {}

# Blocks that begin a stage; all stages take about the same time.
CUTS = {
    1: [],
    2: ["layer3_0"],
    4: ["layer2_0", "layer3_0", "layer4_0"],
}
cuts = partial(_cuts.stated, "resnet18", CUTS)


def build(num_classes: int, image_size: int, options: dict) -> nn.Sequential:
    """Build the model: [B, 3, S, S] float -> [B, num_classes] logits."""
    from torchvision.models import resnet18

    return _resnet.build(resnet18, num_classes, options)
