"""Fully sharded data parallelism (Zhao et al. 2023; torch's fully_shard): each rank holds a shard
of each block's weights, gradients and optimizer state, and gathers a block while it computes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from parbench.strategies import _process_group

if TYPE_CHECKING:
    import torch
    from torch import nn


# The collectives that fully_shard calls, in torch 2.15 and in earlier versions.
COLLECTIVES = (
    "all_gather_single",
    "reduce_scatter_single",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
)


class Strategy(_process_group.DataParallelGroup):
    """One rank of a process group, with its shard of the model; buffers are whole."""

    OPTIONS: ClassVar[dict[str, dict]] = {
        "reshard_after_forward": {
            "description": "free a block's whole weights after its forward pass and gather them "
            "again for its backward pass: less memory, more communication",
            "type": "boolean",
            "default": True,
        },
        "mixed_precision": {
            "description": "with precision bf16: `autocast`, like other strategies, or `policy`, "
            "fully_shard's own: it gathers weights in bfloat16 (half as many bytes), computes "
            "whole blocks in bfloat16, and averages gradients in float32",
            "enum": ["autocast", "policy"],
            "default": "autocast",
            "implied": True,
        },
    }
    REFUSES: ClassVar[dict[str, str]] = {
        "memory_format": "fully_shard supports only contiguous weights",
        "fused": "some of torch's fused optimizers do not support sharded weights",
    }
    # fully_shard is public since torch 2.6; since 2.7 each rank can take its shard of a tensor that
    # all ranks have (distribute_tensor's src_data_rank).
    LEAST_TORCH: str = "2.7"
    LEAST_TO_COMPILE = "2.15"  # tested; a limit on recompiling per block

    @classmethod
    def certified(cls) -> Iterator[tuple[int, dict]]:
        """Yield the cases of data parallelism, and one with blocks kept whole between their
        passes."""
        yield from super().certified()
        yield 2, {"reshard_after_forward": False}
        yield 2, {"mixed_precision": "policy"}

    def least_torch(self) -> str:
        """Return the oldest version of torch that can run this cell."""
        compiles = self.cell.training.compile != "none"
        return self.LEAST_TO_COMPILE if compiles else self.LEAST_TORCH

    def check(self) -> Iterator[str]:
        """Require bf16 for the policy, which supports nothing else."""
        yield from super().check()
        precision = self.cell.training.precision
        if self.options["mixed_precision"] == "policy" and precision != "bf16":
            yield (
                f"mixed_precision policy needs precision bf16, not {precision}; choose "
                "precision bf16, or autocast"
            )

    @property
    def autocast(self) -> str:
        """The precision of autocast: fp32 with the policy, which computes in bfloat16 by itself."""
        return super().autocast if self.options["mixed_precision"] == "autocast" else "fp32"

    def wrap(self, blocks: nn.Sequential) -> nn.Module:
        """Return the model, sharded block by block along its parameters' first dimension (DTensor);
        each block is compiled separately."""
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        from torch.nn.modules.batchnorm import _BatchNorm

        # On the CPU: fully_shard moves one block at a time to the device and keeps only a shard of
        # it.
        model = self.staged(blocks)
        # The device is explicit, since by default it would be a GPU if there is one.
        mesh = init_device_mesh(self.devices[0].type, (self.world_size,))
        reshards = self.options["reshard_after_forward"]
        shard = partial(fully_shard, mesh=mesh, reshard_after_forward=reshards)
        policy, in_float32 = MixedPrecisionPolicy(), []
        if self.cell.training.precision == "bf16" and self.autocast == "fp32":
            policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
            # Half precision has too few digits for statistics, so BatchNorm layers are gathered
            # apart.
            in_float32 = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
        for layer in in_float32:
            shard(layer)
        blocks_with_weights = [
            block
            for stage in model.children()
            for block in stage.children()
            if block not in in_float32 and any(True for _ in block.parameters())
        ]
        # Separately, since weights are gathered between blocks. Blocks of one class would otherwise
        # share a limit on recompiling.
        self.compile(*blocks_with_weights, isolate_recompiles=True)
        for block in blocks_with_weights:
            shard(block, mp_policy=policy)
        fully_shard(model, mesh=mesh)  # in place
        return model

    @contextmanager
    def accumulating(self, model: Any) -> Iterator[None]:
        """Provide a context in which whole gradients stay on this rank, without being scattered."""
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)

    def watch(self, phases: Any, model: nn.Module, optimizer: Any) -> None:
        """Count as exchange the waits for a block's weights before its passes and gradients after.

        It waits on GPUs, too, where weights are otherwise gathered during the previous block.
        """
        from torch import distributed

        # The functions are wrapped, since with NCCL there is no Work to wait for.
        for name in COLLECTIVES:
            if hasattr(distributed, name):
                phases.exchanging_in(distributed, name)

    def full_tensors(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Gather tensors one by one, into host memory."""
        from torch.distributed.tensor import DTensor

        return {
            name: value.full_tensor().cpu() if isinstance(value, DTensor) else value
            for name, value in tensors.items()
        }

    def own_part(self, whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return this rank's shard; scalars (the optimizer's steps) and buffers are not sharded."""
        from torch.distributed.tensor import DTensor, distribute_tensor

        if not isinstance(like, DTensor) or whole.dim() == 0:
            return whole
        # No source rank: every rank has the whole tensor, so nothing is sent.
        whole = whole.to(self.devices[0])
        return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
