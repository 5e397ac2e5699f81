"""torchvision's image classifiers by torchvision's names, such as torchvision/resnet34.

ResNets (also ResNeXt and wide ones) and VGGs are cut into blocks; any other network is one block.
GoogLeNet and Inception v3 lack their auxiliary classifiers, which have losses of their own.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from parbench.models import _resnet
from parbench.models._library import LibraryNetwork, one_block

if TYPE_CHECKING:
    from torch import nn

PACKAGE = "torchvision"
LISTED = "torchvision's documentation lists its classifiers"
# The argument with which a builder gets the image size, by the beginning of its name.
SIZED: dict[str, Any] = {
    "vit_": lambda size: {"image_size": size},
    "maxvit_": lambda size: {"input_size": (size, size)},
}
# init_weights: the default, passed to avoid a warning.
WITHOUT_AUXILIARY = {"aux_logits": False, "init_weights": True}


def names() -> list[str]:
    """Return the names of all image classifiers."""
    from torchvision import models

    return models.list_models(module=models)


class Network(LibraryNetwork):
    """A classifier of torchvision."""

    PACKAGE = PACKAGE

    def network(self, num_classes: int, image_size: int) -> nn.Module:
        """Build the library's network."""
        from torchvision import models

        begins = (keys for start, keys in SIZED.items() if self.name.startswith(start))
        given = next((keys(image_size) for keys in begins), {})
        if self.name in ("googlenet", "inception_v3"):
            given = WITHOUT_AUXILIARY
        return models.get_model(self.name, weights=None, num_classes=num_classes, **given)

    def blocks(self, network: nn.Module) -> nn.Sequential:
        """Return a ResNet or a VGG as a sequence of blocks, any other network as one."""
        from torchvision import models

        if type(network) is models.ResNet:
            return _resnet.blocks(network)
        if type(network) is models.VGG:
            return _vgg(network)
        return one_block(network)

    def places(self, blocks: list[str]) -> list[str]:
        """Return the residual blocks of a ResNet, or the parts of a VGG between poolings."""
        return [name for name in blocks if name.startswith(("layer", "features"))]


def _vgg(network: Any) -> nn.Sequential:
    """Return a VGG as a sequence of blocks, all of which but the head end with pooling."""
    from torch import nn

    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for name, layer in network.features.named_children():
        layers[name] = layer
        if isinstance(layer, nn.MaxPool2d):
            blocks[f"features_{len(blocks)}"] = nn.Sequential(layers)
            layers = OrderedDict()
    head = OrderedDict(avgpool=network.avgpool, flatten=nn.Flatten(1))
    blocks["head"] = nn.Sequential(layers | head | {"classifier": network.classifier})
    return nn.Sequential(blocks)
