"""Plain PyTorch on one device, with which every other strategy is compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from parbench.strategies import _base

if TYPE_CHECKING:
    from torch import nn


class Strategy(_base.Strategy):
    """One process on one device."""

    def check(self) -> Iterator[str]:
        """Require a single device, since others would be idle."""
        if self.cell.hardware.devices * self.cell.hardware.nodes != 1:
            yield "eager training uses one device; choose hardware with devices: 1 and nodes: 1"

    def watch(self, phases: Any, model: nn.Module, optimizer: object) -> None:
        """Register nothing, since a single process waits for no other."""
