"""What data-parallel strategies share: a whole model on every rank, a share of the batch each."""

from __future__ import annotations

from collections.abc import Iterator

from parbench.strategies import _base


class DataParallel(_base.Strategy):
    """One rank a device; the ranks divide each batch among them."""

    @property
    def ranks_per_node(self) -> int:
        """One a device."""
        return self.cell.hardware.devices

    @property
    def data_parallel_size(self) -> int:
        """Every rank takes its share of a batch."""
        return self.cell.hardware.devices * self.cell.hardware.nodes

    @property
    def batch_norm_scope(self) -> str:
        """Every rank sees its own share, unless they tell each other."""
        synchronized = self.cell.training.batch_norm == "synchronized"
        return "the whole batch, over all ranks" if synchronized else "each rank's share"

    @classmethod
    def certified(cls) -> Iterator[tuple[int, dict]]:
        """From one rank to four, so that shares are even and uneven."""
        for devices in (1, 2, 3, 4):
            yield devices, {}
