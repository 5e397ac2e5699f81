"""DistributedDataParallel (Li et al. 2020): whole models, gradients averaged in buckets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from strategies import _data_parallel, eager

if TYPE_CHECKING:
    import torch
    from torch import nn

    from machine import Software
    from strategies import Node

IMAGE = "torch"  # containers/torch.def
OPTIONS: dict[str, dict] = {
    "bucket_cap_mb": {
        "description": "gradients are averaged in buckets of this size, in MiB",
        "type": "number",
        "exclusiveMinimum": 0,
        "default": 25,
    },
    "backend": {
        "description": "communication library; auto: nccl between GPUs, gloo between CPUs",
        "enum": ["auto", "gloo", "nccl"],
        "default": "auto",
    },
}


beside = eager.beside
processes = _data_parallel.processes
parts = _data_parallel.parts
stages = _data_parallel.stages
batch_norm = _data_parallel.batch_norm
pipeline_bound = eager.pipeline_bound
certified = _data_parallel.certified


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


def check(cell: dict) -> Iterator[str]:
    """NCCL moves GPU memory only."""
    if cell["strategy"]["options"]["backend"] == "nccl" and cell["hardware"]["device"] == "cpu":
        yield "backend nccl works between GPUs only; choose backend: gloo or auto for CPU devices"


def notes(cell: dict) -> dict[str, str]:
    """Nothing beside its numbers."""
    return {}


def unavailable(cell: dict, software: Software) -> str | None:
    """GPUs need a torch with NCCL, unless the study asks for Gloo in so many words."""
    if cell["hardware"]["device"] == "cpu" or cell["strategy"]["options"]["backend"] == "gloo":
        return None
    return software.without_nccl("ddp")


class Strategy(eager.Strategy):
    """One rank of a process group."""

    def setup(self) -> None:
        """Join the process group. RuntimeError when GPUs would need an NCCL that torch lacks."""
        import torch
        from torch import distributed

        self.rank = int(os.environ["RANK"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.devices = [self.device(self.local_rank)]
        on_gpu = self.devices[0].type == "cuda"
        self.backend = self.cell["strategy"]["options"]["backend"]
        if self.backend == "auto":
            self.backend = "nccl" if on_gpu else "gloo"
        if self.backend == "nccl" and not distributed.is_nccl_available():
            raise RuntimeError(
                "not run: this torch is built without NCCL; install a CUDA build of torch, or "
                "state backend: gloo"
            )
        if on_gpu:
            torch.cuda.set_device(self.devices[0])
        # Later than the launcher, which says which rank hung where.
        timeout = timedelta(seconds=self.cell["run"]["timeout_seconds"] + 60)
        distributed.init_process_group(self.backend, timeout=timeout)

    def wrap(self, blocks: nn.Sequential) -> nn.Module:
        """The model, whose backward pass averages gradients over the ranks."""
        from torch.nn.parallel import DistributedDataParallel

        model = super().wrap(blocks)
        device_ids = [self.devices[0]] if self.devices[0].type == "cuda" else None
        bucket = self.cell["strategy"]["options"]["bucket_cap_mb"]
        return DistributedDataParallel(model, device_ids=device_ids, bucket_cap_mb=bucket)

    def watch(self, phases: Any, model: nn.Module, optimizer: Any) -> None:
        """A forward pass begins with rank 0's buffers. In the backward pass, from the last bucket
        on, this rank has no gradient left to compute: it exchanges until the pass ends. Earlier
        buckets cross the network while it computes.
        """
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        def average(state, bucket):  # annotated as text, DDP would refuse it
            if bucket.is_last():
                phases.enter("exchange")
            return default_hooks.allreduce_hook(state, bucket)

        model.register_comm_hook(None, average)
        model._sync_buffers = phases.exchanging(model._sync_buffers)  # DDP tells nobody of it

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Without DDP's collective calls: ranks may evaluate different numbers of batches."""
        return model.module

    def reduce(self, values: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """All-reduce, in place."""
        from torch import distributed

        distributed.all_reduce(values, getattr(distributed.ReduceOp, op.upper()))
        return values

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Every rank takes rank 0's buffers."""
        from torch import distributed

        for buffer in model.buffers():
            distributed.broadcast(buffer, src=0)

    def close(self) -> None:
        """Destroy the process group, once nobody holds the wrapped model.

        torch 2.15 with Gloo otherwise aborts at exit now and then.
        """
        from torch import distributed

        distributed.destroy_process_group()
