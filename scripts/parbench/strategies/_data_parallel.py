"""What data-parallel strategies have in common: the ranks divide each batch among them."""

from __future__ import annotations

from collections.abc import Iterator

from parbench.strategies import _base


class DataParallel(_base.Strategy):
    """One rank per device; the ranks divide each batch among them."""

    @property
    def ranks_per_node(self) -> int:
        """One rank per device."""
        return self.cell.hardware.devices

    @property
    def data_parallel_size(self) -> int:
        """The number of ranks, since each takes its share of a batch."""
        return self.cell.hardware.devices * self.cell.hardware.nodes

    @property
    def data_parallel_rank(self) -> int:
        """This rank's number, since each rank takes one share."""
        return self.rank

    @property
    def batch_norm_scope(self) -> str:
        """Each rank's share or micro-batch, unless BatchNorm is synchronized."""
        if self.micro_batches > 1:
            return super().batch_norm_scope
        synchronized = self.cell.training.batch_norm == "synchronized"
        return "the whole batch, over all ranks" if synchronized else "each rank's share"

    @classmethod
    def certified(cls) -> Iterator[tuple[int, dict]]:
        """Yield one to four ranks, so that both equal and unequal shares occur."""
        for devices in (1, 2, 3, 4):
            yield devices, {}
