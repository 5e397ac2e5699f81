"""torchvision's ResNets (He et al. 2016) as sequences of blocks; their stem for small images."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


# Cells that lack the option have `imagenet`.
STEM: dict[str, dict] = {
    "stem": {
        "description": "the first layers: imagenet, 7x7 with stride 2 and max pooling, or cifar, "
        "3x3 without stride and without pooling",
        "enum": ["imagenet", "cifar"],
        "default": "imagenet",
        "implied": True,
    },
}


def build(builder: Callable[..., nn.Module], num_classes: int, options: dict) -> nn.Sequential:
    """Return the ResNet that ``builder`` of torchvision makes as a sequence of blocks.

    ``options`` are the builder's and the stem. The stem's weights are drawn as those of other
    convolutions.
    """
    from torch import nn

    own = {key: value for key, value in options.items() if key not in STEM}
    network: Any = builder(num_classes=num_classes, **own)
    if options.get("stem", "imagenet") == "cifar":
        width = network.conv1.out_channels
        network.conv1, network.maxpool = (
            nn.Conv2d(3, width, 3, padding=1, bias=False),
            nn.Identity(),
        )
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    return blocks(network)


def blocks(resnet: Any) -> nn.Sequential:
    """Return a torchvision ResNet as a sequence of blocks with the same parameters in order."""
    from torch import nn

    stem = OrderedDict(conv1=resnet.conv1, bn1=resnet.bn1, relu=resnet.relu, maxpool=resnet.maxpool)
    block_by_name: OrderedDict[str, nn.Module] = OrderedDict(stem=nn.Sequential(stem))
    for layer in ("layer1", "layer2", "layer3", "layer4"):
        for index, block in enumerate(getattr(resnet, layer)):
            block_by_name[f"{layer}_{index}"] = block
    head = OrderedDict(avgpool=resnet.avgpool, flatten=nn.Flatten(1), fc=resnet.fc)
    block_by_name["head"] = nn.Sequential(head)
    return nn.Sequential(block_by_name)
