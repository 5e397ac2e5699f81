"""timm's image classifiers by timm's names, such as timm/mobilenetv4_conv_small, in one block.

A name is that of a network, without the tag of published weights that timm adds after a dot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parbench.models._library import LibraryNetwork

if TYPE_CHECKING:
    from torch import nn

PACKAGE = "timm"
LISTED = "timm.list_models() lists them"


def names() -> list[str]:
    """Return the names of all networks."""
    import timm

    return timm.list_models()


class Network(LibraryNetwork):
    """A network of timm, built for the cell's image size if it depends on one."""

    PACKAGE = PACKAGE

    def network(self, num_classes: int, image_size: int) -> nn.Module:
        """Build the library's network."""
        import timm
        import torch

        random = torch.get_rng_state()
        try:
            return timm.create_model(self.name, num_classes=num_classes, img_size=image_size)
        except TypeError as error:
            if "img_size" not in str(error):
                raise
        torch.set_rng_state(random)
        return timm.create_model(self.name, num_classes=num_classes)
