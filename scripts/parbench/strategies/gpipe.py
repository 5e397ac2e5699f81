"""GPipe (Huang et al. 2019) by torchgpipe: stages on devices, micro-batches in a pipeline."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from parbench.strategies import _base

if TYPE_CHECKING:
    import torch
    from torch import nn


class Strategy(_base.Strategy):
    """One process that drives all devices of a node, with a partition on each."""

    OPTIONS: ClassVar[dict[str, dict]] = {
        "balance": {
            "description": "number of stages on each device: [2] puts two on one device, [1, 1] "
            "one on each of two",
            "type": "array",
            "items": {"type": "integer", "minimum": 1},
            "minItems": 1,
        },
        "chunks": {
            "description": "largest number of micro-batches per batch, all of one size except the "
            "last (torch.chunk)",
            "type": "integer",
            "minimum": 1,
            "default": 4,
        },
        "checkpoint": {
            "description": "which micro-batches recompute their activations in the backward pass",
            "enum": ["never", "except_last", "always"],
            "default": "except_last",
        },
        "deferred_batch_norm": {
            "description": "update BatchNorm's running statistics once per batch, not per "
            "micro-batch",
            "type": "boolean",
            "default": False,
        },
    }

    REFUSES: ClassVar[dict[str, str]] = {
        "compile": "torchgpipe computes in its own threads, which torch.compile does not support",
        "gradient_accumulation": "GPipe has its own micro-batches (chunks)",
    }

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches (``chunks``)."""
        return self.options["chunks"]

    @property
    def stages(self) -> int:
        """The number of stages; torchgpipe's balance counts them by device."""
        return sum(self.options["balance"])

    @property
    def batch_norm_scope(self) -> str:
        """A description: each micro-batch, and how often its forward passes, recomputed ones
        included, update running statistics, unless they are deferred to the end of a batch."""
        chunks, batch = self.micro_batches, self.cell.training.global_batch
        made = math.ceil(batch / math.ceil(batch / chunks))  # by torch.chunk, which may make fewer
        scope = super().batch_norm_scope if chunks == 1 else "each micro-batch"
        if self.options["deferred_batch_norm"]:
            return f"{scope}, running statistics of whole batches"
        again = {"never": 0, "except_last": chunks - 1, "always": chunks}
        updates = made + min(made, again[self.options["checkpoint"]])
        times = {1: "once", 2: "twice"}.get(updates, f"{updates} times")
        return f"{scope}, running statistics updated {times} a batch"

    @property
    def equal_batch_norm(self) -> bool:
        """Whether batches are not divided and update running statistics once, as in torch."""
        again = self.options["checkpoint"] == "always" or self.options["deferred_batch_norm"]
        return super().equal_batch_norm and not again

    @property
    def pipeline_bound(self) -> float | None:
        """The upper bound: m equal micro-batches take m + n - 1 turns on n devices, m * n on one.

        None if nothing overlaps: on one device, and on CPU devices, which share one worker.
        """
        devices = self.cell.hardware.devices
        if devices == 1 or self.cell.hardware.device == "cpu":
            return None
        return self.micro_batches * devices / (self.micro_batches + devices - 1)

    def check(self) -> Iterator[str]:
        """Require one node, a balance that fits its devices, and settings that torchgpipe
        supports."""
        balance, hardware = self.options["balance"], self.cell.hardware
        if hardware.nodes != 1:
            yield f"torchgpipe works within one node, not {hardware.nodes}; choose nodes: 1"
        if len(balance) != hardware.devices:
            yield (
                f"balance {balance} places stages on {len(balance)} devices, but the hardware "
                f"{hardware.name} has {hardware.devices}; make the two agree"
            )
        profile = self.cell.training.profile
        if profile not in ("none", "phases"):
            yield (
                f"profile {profile}: torchgpipe computes in its own threads, which torch's "
                "profiler does not see; choose none or phases"
            )
        if self.cell.training.batch_norm == "synchronized" and self.micro_batches > 1:
            yield (
                "batch_norm synchronized: GPipe normalizes each micro-batch by itself; choose "
                "local (deferred_batch_norm: true keeps running statistics of whole batches), or "
                "chunks: 1"
            )

    @classmethod
    def certified(cls) -> Iterator[tuple[int, dict]]:
        """Yield both placements of two stages, whole and divided batches, and all checkpoint
        modes."""
        for balance in ([2], [1, 1]):
            for checkpoint in cls.OPTIONS["checkpoint"]["enum"]:
                for chunks in (1, 2, 4, 8):
                    yield len(balance), dict(balance=balance, chunks=chunks, checkpoint=checkpoint)
                deferred = {"chunks": 4, "deferred_batch_norm": True}
                yield len(balance), dict(balance=balance, checkpoint=checkpoint, **deferred)

    def notes(self) -> dict[str, str]:
        """Return a note that CPU devices share one worker, so speedups say nothing about a
        pipeline."""
        if self.cell.hardware.device == "cpu" and self.cell.hardware.devices > 1:
            return dict.fromkeys(
                ("speedup", "throughput_ratio", "parallel_efficiency"),
                "torchgpipe gives all CPU devices one worker: this is the cost of micro-batches, "
                "not a scaling result",
            )
        return {}

    def setup(self) -> None:
        """Use all devices of the cell."""
        self.devices = [self.device(index) for index in range(self.cell.hardware.devices)]

    def wrap(self, blocks: nn.Sequential) -> nn.Module:
        """Return the model with stages placed by the balance, input on the first device, output on
        the last."""
        from torchgpipe import GPipe
        from torchgpipe.batchnorm import DeferredBatchNorm

        model = GPipe(self.staged(blocks), devices=self.devices, **self.options)
        deferred = [layer for layer in model.modules() if isinstance(layer, DeferredBatchNorm)]

        def count(model: GPipe, inputs: tuple[torch.Tensor]) -> None:
            """Set how many micro-batches a batch has: torch.chunk makes 3, not 4, of 9 samples."""
            number = len(inputs[0].chunk(self.micro_batches))
            for layer in deferred:
                layer.chunks = number

        model.register_forward_pre_hook(count)
        return model

    def watch(self, phases: Any, model: Any, optimizer: Any) -> None:
        """Register each partition with its device; on CPU, all belong to one worker."""
        for partition, device in zip(model.partitions, model.devices, strict=True):
            phases.watch_stage(partition, device)
