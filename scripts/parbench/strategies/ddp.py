"""DistributedDataParallel (Li et al. 2020): whole models, gradients averaged in buckets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

from parbench.strategies import _process_group

if TYPE_CHECKING:
    from torch import nn


class Strategy(_process_group.DataParallelGroup):
    """One rank of a process group, with a model of its own."""

    OPTIONS: ClassVar[dict[str, dict]] = {
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

    def check(self) -> Iterator[str]:
        """NCCL moves GPU memory only."""
        if self.options["backend"] == "nccl" and self.cell.hardware.device == "cpu":
            yield (
                "backend nccl works between GPUs only; choose backend: gloo or auto for CPU devices"
            )

    def library(self) -> str:
        """The study's choice."""
        asked = self.options["backend"]
        return super().library() if asked == "auto" else asked

    def wrap(self, blocks: nn.Sequential) -> nn.Module:
        """The model, whose backward pass averages gradients over the ranks."""
        from torch.nn.parallel import DistributedDataParallel

        model = super().wrap(blocks)
        device_ids = [self.devices[0]] if self.devices[0].type == "cuda" else None
        bucket = self.options["bucket_cap_mb"]
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
        # What DDP does before the model's own forward pass is to broadcast buffers.
        broadcast = ExitStack()
        model.register_forward_pre_hook(
            lambda *given: broadcast.enter_context(phases.phase("exchange"))
        )
        model.module.register_forward_pre_hook(lambda *given: broadcast.close())

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Without DDP's collective calls, which evaluation has no need of."""
        return model.module
