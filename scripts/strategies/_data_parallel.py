"""What data-parallel strategies share: a whole model on every rank, a share of the batch each."""

from __future__ import annotations

from collections.abc import Iterator


def processes(cell: dict) -> int:
    """One process a device."""
    return cell["hardware"]["devices"]


def shares(cell: dict) -> int:
    """Every rank takes its share of a batch."""
    return cell["hardware"]["devices"] * cell["hardware"]["nodes"]


parts = shares


def stages(cell: dict) -> int:
    """The model stays whole on every rank."""
    return 1


def batch_norm(cell: dict) -> str:
    """Every rank sees its own share, unless they tell each other."""
    synchronized = cell["training"]["batch_norm"] == "synchronized"
    return "the whole batch, over all ranks" if synchronized else "each rank's share"


def certified() -> Iterator[tuple[int, dict]]:
    """From one rank to four, so that shares are even and uneven."""
    for devices in (1, 2, 3, 4):
        yield devices, {}
