"""What strategies of torch's own process groups share: torchrun, Gloo or NCCL, sums over ranks."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import measure
from strategies import _data_parallel, eager

if TYPE_CHECKING:
    import torch
    from torch import nn

    from machine import Software
    from strategies import Node


processes = _data_parallel.processes


def launcher(cell: dict, python: str, node: Node | None = None) -> list[str]:
    """torchrun: on one node with a rendezvous of its own, on several they meet at the first.

    The address is stated because torchrun hangs where the machine's name does not resolve.
    """
    run = [python, "-m", "torch.distributed.run", "--nproc-per-node", str(processes(cell))]
    if node is None:
        return [*run, "--standalone", "--local-addr", "127.0.0.1"]
    run += ["--nnodes", str(node.count), "--node-rank", str(node.rank)]
    run += ["--master-addr", node.address, "--master-port", str(node.port)]
    return [*run, "--rdzv-conf", f"timeout={cell['run']['connect_seconds']}"]


def without_torch(cell: dict, least: str) -> str | None:
    """Why the torch of the cell's stack is too old: it is older than ``least``; else None."""
    found = measure.locked(cell["stack"])["torch"]
    if _numbers(found) >= _numbers(least):
        return None
    return f"needs torch {least}, and stack {cell['stack']} has {found}: choose stack: current"


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def without_nccl(cell: dict, software: Software) -> str | None:
    """Why this torch cannot join the cell's devices; None where they are no GPUs."""
    return None if cell["hardware"]["device"] == "cpu" else software.without_nccl("ddp")


def broadcast_buffers(strategy: Strategy, model: nn.Module) -> None:
    """Strategy.broadcast_buffers where every rank has all buffers: they take rank 0's."""
    from torch import distributed

    for buffer in model.buffers():
        distributed.broadcast(buffer, src=0)


class Strategy(eager.Strategy):
    """One rank of a process group, on one device."""

    def library(self) -> str:
        """What joins the devices of this cell."""
        return "nccl" if self.devices[0].type == "cuda" else "gloo"

    def setup(self) -> None:
        """Join the process group. RuntimeError when GPUs would need an NCCL that torch lacks."""
        import torch
        from torch import distributed

        self.rank = int(os.environ["RANK"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.devices = [self.device(self.local_rank)]
        self.backend = self.library()
        if self.backend == "nccl" and not distributed.is_nccl_available():
            raise RuntimeError(
                "not run: this torch is built without NCCL; install a CUDA build of torch, or "
                "state backend: gloo"
            )
        if self.devices[0].type == "cuda":
            torch.cuda.set_device(self.devices[0])
        # Later than the launcher, which says which rank hung where.
        timeout = timedelta(seconds=self.cell["run"]["timeout_seconds"] + 60)
        distributed.init_process_group(self.backend, timeout=timeout)

    def reduce(self, values: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """All-reduce, in place."""
        from torch import distributed

        distributed.all_reduce(values, getattr(distributed.ReduceOp, op.upper()))
        return values

    def close(self) -> None:
        """Destroy the process group, once nobody holds the wrapped model.

        torch 2.15 with Gloo otherwise aborts at exit now and then.
        """
        from torch import distributed

        distributed.destroy_process_group()
