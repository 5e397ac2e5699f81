"""torchvision's ResNets (He et al. 2016) as sequences of blocks."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def blocks(resnet: nn.Module) -> nn.Sequential:
    """Return a torchvision ResNet as a sequence of blocks; same parameters, same order."""
    from torch import nn

    stem = OrderedDict(conv1=resnet.conv1, bn1=resnet.bn1, relu=resnet.relu, maxpool=resnet.maxpool)
    block_by_name = OrderedDict(stem=nn.Sequential(stem))
    for layer in ("layer1", "layer2", "layer3", "layer4"):
        for index, block in enumerate(getattr(resnet, layer)):
            block_by_name[f"{layer}_{index}"] = block
    head = OrderedDict(avgpool=resnet.avgpool, flatten=nn.Flatten(1), fc=resnet.fc)
    block_by_name["head"] = nn.Sequential(head)
    return nn.Sequential(block_by_name)
