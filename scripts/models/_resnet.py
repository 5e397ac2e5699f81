"""What torchvision's ResNets share (He et al. 2016): blocks in a row, and where to cut them."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from errors import ParbenchError

if TYPE_CHECKING:
    from torch import nn


def blocks(resnet: nn.Module) -> nn.Sequential:
    """A torchvision ResNet as a row of blocks; same parameters, same order."""
    from torch import nn

    stem = OrderedDict(conv1=resnet.conv1, bn1=resnet.bn1, relu=resnet.relu, maxpool=resnet.maxpool)
    row = OrderedDict(stem=nn.Sequential(stem))
    for layer in ("layer1", "layer2", "layer3", "layer4"):
        for index, block in enumerate(getattr(resnet, layer)):
            row[f"{layer}_{index}"] = block
    head = OrderedDict(avgpool=resnet.avgpool, flatten=nn.Flatten(1), fc=resnet.fc)
    row["head"] = nn.Sequential(head)
    return nn.Sequential(row)


def stated_cuts(model: str, cuts: dict[int, list[str]], stages: int) -> list[str]:
    """The cuts that a model file states for ``stages``; ParbenchError when it states none."""
    if stages not in cuts:
        stated = ", ".join(str(number) for number in sorted(cuts))
        raise ParbenchError(
            f"scripts/models/{model}.py states cuts for {stated} stages, not for {stages}; "
            "choose one of these, or add the cut there"
        )
    return cuts[stages]
