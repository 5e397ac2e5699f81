"""A library's network as a model: the base class of networks in libraries/."""

from __future__ import annotations

import importlib.metadata
from abc import ABC, abstractmethod
from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from parbench.errors import ParbenchError
from parbench.models import _outline

if TYPE_CHECKING:
    from torch import nn


class LibraryNetwork(ABC):
    """The network ``name`` of the library ``PACKAGE``, as the library builds it, without published
    weights, with the attributes that a model file defines."""

    PACKAGE: ClassVar[str]
    OPTIONS: ClassVar[dict[str, dict]] = {}
    SMALL: ClassVar[dict] = {}

    def __init__(self, name: str):
        self.name = name

    @abstractmethod
    def network(self, num_classes: int, image_size: int) -> nn.Module:
        """Build the library's network. May raise any error for an unsupported ``image_size``."""

    def blocks(self, network: nn.Module) -> nn.Sequential:
        """Return ``network`` as a sequence of blocks with the same parameters in the same order."""
        return one_block(network)

    def places(self, blocks: list[str]) -> list[str]:
        """Return the ``blocks`` at which a stage may begin, all of about the same cost; empty if
        the network is not cut."""
        return []

    def cuts(self, stages: int, options: dict) -> list[str]:
        """Return the names of the blocks that begin the 2nd, 3rd, ... of ``stages`` stages.

        Raises ParbenchError if there cannot be that many.
        """
        if stages == 1:
            return []
        called = f"{self.PACKAGE}/{self.name}"
        blocks = _outline.outline(lambda: self.build(_outline.CLASSES, self.SMALL_SIZE, options))
        places = self.places([name for name, _ in blocks.named_children()])
        if stages > len(places):
            raise ParbenchError(uncut(called, stages, len(places)))
        return [places[round(index * len(places) / stages)] for index in range(1, stages)]

    def build(self, num_classes: int, image_size: int, options: dict) -> nn.Sequential:
        """Build the model: [B, 3, S, S] float -> [B, num_classes] logits."""
        try:
            return self.blocks(self.network(num_classes, image_size))
        except (NotImplementedError, RuntimeError):
            raise  # the meta device cannot do it, or memory ran out
        except Exception as error:
            version = importlib.metadata.version(self.PACKAGE)
            raise ParbenchError(
                f"{self.PACKAGE} {version} cannot build {self.name} for images of "
                f"{image_size}x{image_size} ({_outline.described(error)}); choose another "
                "image_size, or another network"
            ) from error

    def problem(self, image_size: int, options: dict) -> str | None:
        """Return a sentence on why it cannot train on images of this size; None if it can."""
        return _outline.problem(lambda: self.network(_outline.CLASSES, image_size), image_size)

    @cached_property
    def SMALL_SIZE(self) -> int:
        """The size of images for its certificate, in pixels per side."""
        return _outline.small_size(lambda size: self.network(_outline.CLASSES, size))


def one_block(network: nn.Module) -> nn.Sequential:
    """Return ``network``, which is not cut, as a sequence of one block."""
    from torch import nn

    return nn.Sequential(OrderedDict(network=network))


def uncut(called: str, stages: int, places: int = 0) -> str:
    """Return why the model ``called`` cannot have ``stages``; one may begin at ``places``
    blocks."""
    if places:
        return f"{called} has {places} blocks, and cannot be cut into {stages} stages; choose fewer"
    return (
        f"{called} is one block, and cannot be cut into {stages} stages: nothing says that its "
        "parts compute in sequence; choose a strategy without stages (eager, ddp, fsdp, horovod, "
        "deepspeed), or a model file of your own with `cuts` (docs/extending.md)"
    )
