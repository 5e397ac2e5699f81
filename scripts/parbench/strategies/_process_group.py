"""What strategies with torch's process groups have in common: Gloo or NCCL, and reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parbench.strategies import _base, _data_parallel, _rendezvous

if TYPE_CHECKING:
    import torch
    from torch import nn

    from parbench.software import Software


class ProcessGroup(_base.Strategy):
    """One rank of a process group, on one device."""

    LEAST_TORCH: str | None = None  # the oldest version that can run it

    @property
    def ranks_per_node(self) -> int:
        """One rank per device."""
        return self.cell.hardware.devices

    def least_torch(self) -> str | None:
        """Return the oldest version of torch that can run this cell; None if all can."""
        return self.LEAST_TORCH

    def unavailable(self, software: Software) -> str | None:
        """Return why the stack's torch is too old; None if it is not."""
        least = self.least_torch()
        return None if least is None else software.without_torch(self.cell.stack, least)

    def library(self) -> str:
        """Return the communication library for this cell's devices."""
        return "nccl" if self.devices[0].type == "cuda" else "gloo"

    def setup(self) -> None:
        """Join the process group."""
        import torch
        from torch import distributed

        self.rank, self.local_rank = _rendezvous.rank(), _rendezvous.local_rank()
        self.world_size = _rendezvous.world_size()
        self.devices = [self.device(self.local_rank)]
        self.backend = self.library()
        if self.devices[0].type == "cuda":
            torch.cuda.set_device(self.devices[0])
        run = self.cell.run
        distributed.init_process_group(
            self.backend,
            timeout=_rendezvous.timeout(run),
            store=_rendezvous.store(run),
            rank=self.rank,
            world_size=self.world_size,
        )

    def reduce(self, values: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """All-reduce ``values`` in place."""
        from torch import distributed

        distributed.all_reduce(values, getattr(distributed.ReduceOp, op.upper()))
        return values

    def close(self) -> None:
        """Destroy the process group. Called after the wrapped model is released.

        Without this, torch 2.15 with Gloo sometimes aborts at exit.
        """
        from torch import distributed

        distributed.destroy_process_group()


class DataParallelGroup(_data_parallel.DataParallel, ProcessGroup):
    """A process group whose ranks divide each batch and have all buffers."""

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Broadcast the buffers of rank 0."""
        from torch import distributed

        for buffer in model.buffers():
            distributed.broadcast(buffer, src=0)
