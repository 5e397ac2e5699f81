"""Fully sharded data parallelism (Zhao et al. 2023; torch's fully_shard): every rank holds a part
of each block's weights, gradients and optimizer state, and has a block whole while it computes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from parbench.strategies import _process_group

if TYPE_CHECKING:
    import torch
    from torch import nn


class Strategy(_process_group.DataParallelGroup):
    """One rank of a process group, with its part of the model, whose buffers are whole."""

    OPTIONS: ClassVar[dict[str, dict]] = {
        "reshard_after_forward": {
            "description": "free a block's whole weights after its forward pass and gather them "
            "again for its backward pass: less memory, more communication",
            "type": "boolean",
            "default": True,
        },
    }
    REFUSES: ClassVar[dict[str, str]] = {
        "compile": "fully_shard gathers weights in the middle of what would be compiled",
        "memory_format": "fully_shard takes no weights that are not contiguous",
        "fused": "not every fused optimizer of torch knows weights that are in parts",
    }
    # fully_shard is public since 2.6, and since 2.7 every rank may take its part of a tensor that
    # all have (distribute_tensor's src_data_rank).
    LEAST_TORCH = "2.7"

    @classmethod
    def certified(cls) -> Iterator[tuple[int, dict]]:
        """As data parallelism, and with blocks that stay whole between their two passes."""
        yield from super().certified()
        yield 2, {"reshard_after_forward": False}

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
                    fully_shard(block, mesh=mesh, **self.options)
        return fully_shard(model, mesh=mesh)

    def watch(self, phases: Any, model: nn.Module, optimizer: Any) -> None:
        """A rank waits for a block's weights before its passes, and for its gradients after them.

        On GPUs, too, where it would otherwise gather beside the block before.
        """
        from torch import distributed

        phases.exchanging_in(distributed.Work, "wait")

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
