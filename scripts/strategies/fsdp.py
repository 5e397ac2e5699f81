"""Fully sharded data parallelism (Zhao et al. 2023; torch's fully_shard): every rank holds a part
of each block's weights, gradients and optimizer state, and has a block whole while it computes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from strategies import _data_parallel, _process_group, eager

if TYPE_CHECKING:
    import torch
    from torch import nn

    from machine import Software

IMAGE = "torch"  # containers/torch.def
OPTIONS: dict[str, dict] = {
    "reshard_after_forward": {
        "description": "free a block's whole weights after its forward pass and gather them again "
        "for its backward pass: less memory, more communication",
        "type": "boolean",
        "default": True,
    },
}

beside = eager.beside
processes = _data_parallel.processes
shares = _data_parallel.shares
parts = _data_parallel.parts
stages = _data_parallel.stages
batch_norm = _data_parallel.batch_norm
pipeline_bound = eager.pipeline_bound
launcher = _process_group.launcher


def check(cell: dict) -> Iterator[str]:
    """Any number of ranks."""
    yield from ()


def certified() -> Iterator[tuple[int, dict]]:
    """As data parallelism, and with blocks that stay whole between their two passes."""
    yield from _data_parallel.certified()
    yield 2, {"reshard_after_forward": False}


def notes(cell: dict) -> dict[str, str]:
    """Nothing beside its numbers."""
    return {}


def unavailable(cell: dict, software: Software) -> str | None:
    """fully_shard is public since torch 2.6, and since 2.7 every rank may take its part of a tensor
    that all have (distribute_tensor's src_data_rank); GPUs need NCCL.
    """
    missing = _process_group.without_torch(cell, "2.7")
    return missing or _process_group.without_nccl(cell, software)


class Strategy(_process_group.Strategy):
    """One rank of a process group, with its part of the model, whose buffers are whole."""

    broadcast_buffers = _process_group.broadcast_buffers

    def wrap(self, blocks: nn.Sequential) -> nn.Module:
        """The model, block by block in parts of its parameters' first dimension (DTensor)."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model = super().wrap(blocks)
        # Stated: by itself it would take a GPU wherever there is one.
        mesh = init_device_mesh(self.devices[0].type, (self.world_size,))
        for stage in model:
            for block in stage:
                if any(True for _ in block.parameters()):
                    fully_shard(block, mesh=mesh, **self.cell["strategy"]["options"])
        return fully_shard(model, mesh=mesh)

    def watch(self, phases: Any, model: nn.Module, optimizer: Any) -> None:
        """A rank gathers a block's weights before its passes, and scatters its gradients after
        them; those of the first block, whose images have none, at the end of all.
        """
        # FSDP tells nobody when it waits.
        from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
        from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

        # Gloo gathers at once. NCCL does beside the GPU, which computes the block before: only what
        # it then still waits for costs time, and a phase that began earlier would end that.
        at_once = self.backend == "gloo"
        gather = ["pre_forward", "pre_backward"] if at_once else ["wait_for_unshard"]
        for name in (*gather, "post_backward"):
            phases.exchanging_in(FSDPParamGroup, name)
        phases.exchanging_in(FSDPState, "_root_post_backward_final_callback")

    def whole(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Gathered one by one, and kept outside of the accelerator."""
        from torch.distributed.tensor import DTensor

        return {
            name: value.full_tensor().cpu() if isinstance(value, DTensor) else value
            for name, value in tensors.items()
        }

    def part(self, whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """A number (the optimizer's steps) is the same on every rank, and so are buffers."""
        from torch.distributed.tensor import DTensor, distribute_tensor

        if not isinstance(like, DTensor) or whole.dim() == 0:
            return whole
        # Every rank has read the whole: nothing is sent.
        whole = whole.to(self.devices[0])
        return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
