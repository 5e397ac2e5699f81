"""Horovod (Sergeev and Del Balso 2018): whole models, gradients averaged by all-reduce."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strategies import _data_parallel, eager

if TYPE_CHECKING:
    import torch
    from torch import nn

    from machine import Software
    from strategies import Node

IMAGE = "horovod"  # containers/horovod.def
OPTIONS: dict[str, dict] = {
    "compression": {
        "description": "gradients cross the network as float32 (none) or float16 (fp16)",
        "enum": ["none", "fp16"],
        "default": "none",
    },
    "fusion_threshold_mb": {
        "description": "gradients are fused into buffers of this size, in MiB; 0 fuses nothing",
        "type": "number",
        "minimum": 0,
        "default": 128,
    },
}

beside = eager.beside
processes = _data_parallel.processes
shares = _data_parallel.shares
parts = _data_parallel.parts
stages = _data_parallel.stages
batch_norm = _data_parallel.batch_norm
pipeline_bound = eager.pipeline_bound
certified = _data_parallel.certified


def launcher(cell: dict, python: str, node: Node | None = None) -> list[str]:
    """Our own starter of a node's ranks, over Gloo: no MPI, no ssh.

    Not horovodrun: it goes to other nodes by ssh, and to be ended it needs a SIGTERM that the ranks
    must not hear (see children.start).
    """
    run = [python, str(Path(__file__).parent.parent / "horovod_node.py")]
    run += ["--processes", str(processes(cell))]
    if node is not None:
        run += ["--nodes", str(node.count), "--node", str(node.rank)]
        run += ["--address", node.address, "--port", str(node.port)]
    return [*run, "--", python]


def check(cell: dict) -> Iterator[str]:
    """More than two ranks add in an order that fusion, and so time, decides."""
    ranks, threshold = parts(cell), cell["strategy"]["options"]["fusion_threshold_mb"]
    if cell["training"]["mode"] == "deterministic" and ranks > 2 and threshold > 0:
        yield (
            f"mode deterministic on {ranks} ranks needs fusion_threshold_mb: 0, not {threshold:g}: "
            "what is fused depends on time, and with it the last digits of every sum"
        )


def notes(cell: dict) -> dict[str, str]:
    """Nothing beside its numbers."""
    return {}


def unavailable(cell: dict, software: Software) -> str | None:
    """Why Horovod is not here, in the compiler's words; GPUs need one with NCCL."""
    return software.without_horovod() or (
        software.without_nccl("horovod") if cell["hardware"]["device"] == "cuda" else None
    )


class Strategy(eager.Strategy):
    """One rank of a Horovod job."""

    def setup(self) -> None:
        """Join the job. RuntimeError when GPUs would need an NCCL that Horovod lacks."""
        threshold = self.cell["strategy"]["options"]["fusion_threshold_mb"]
        os.environ["HOROVOD_FUSION_THRESHOLD"] = str(int(threshold * 2**20))  # read by init()
        import horovod.torch as hvd
        import torch

        hvd.init()
        self.rank, self.local_rank, self.world_size = hvd.rank(), hvd.local_rank(), hvd.size()
        self.devices = [self.device(self.local_rank)]
        self.backend = "gloo"
        if self.devices[0].type == "cuda":
            if not hvd.nccl_built():
                raise RuntimeError(
                    "not run: this Horovod is built without NCCL; build it with a CUDA toolkit "
                    "(containers/build_horovod.py --gpu nccl)"
                )
            self.backend = "nccl"
            torch.cuda.set_device(self.devices[0])

    def wrap(self, blocks: nn.Sequential) -> nn.Module:
        """The model, with the parameters of rank 0."""
        import horovod.torch as hvd

        model = super().wrap(blocks)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model

    def optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> Any:
        """An optimizer that averages each gradient over the ranks as soon as it is there."""
        import horovod.torch as hvd

        compression = getattr(hvd.Compression, self.cell["strategy"]["options"]["compression"])
        return hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), compression=compression
        )

    def watch(self, phases: Any, model: nn.Module, optimizer: Any) -> None:
        """Once the backward pass is over, a step begins by waiting for all averages."""
        optimizer.synchronize = phases.exchanging(optimizer.synchronize)

    def step(self, optimizer: Any, scaler: torch.amp.GradScaler) -> None:
        """Wait for the averages before the scaler looks for infinities, then step once."""
        if not scaler.is_enabled():
            optimizer.step()
            return
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()

    def reduce(self, values: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """All-reduce, in place."""
        import horovod.torch as hvd

        return hvd.allreduce_(values, op={"sum": hvd.Sum, "max": hvd.Max}[op])

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Every rank takes rank 0's buffers."""
        import horovod.torch as hvd

        for index, buffer in enumerate(model.buffers()):
            hvd.broadcast_(buffer, root_rank=0, name=f"buffer.{index}")

    def close(self) -> None:
        """Leave the job."""
        import horovod.torch as hvd

        hvd.shutdown()
