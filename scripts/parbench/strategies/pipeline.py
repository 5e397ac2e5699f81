"""A pipeline over processes (torch.distributed.pipelining): one stage per rank, micro-batches by
the schedule of GPipe (Huang et al. 2019) or 1F1B (Narayanan et al. 2019).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from parbench.strategies import _process_group

if TYPE_CHECKING:
    import torch
    from torch import nn

    from parbench.strategies._base import Loss


class Strategy(_process_group.ProcessGroup):
    """One rank of a process group, with its stage of the model."""

    OPTIONS: ClassVar[dict[str, dict]] = {
        "schedule": {
            "description": "gpipe: all forward passes, then all backward passes; 1f1b: in turn, so "
            "that a stage holds activations of no more micro-batches than there are stages",
            "enum": ["gpipe", "1f1b"],
            "default": "1f1b",
        },
        "chunks": {
            "description": "number of micro-batches per batch",
            "type": "integer",
            "minimum": 1,
            "default": 4,
        },
    }
    REFUSES: ClassVar[dict[str, str]] = {
        "compile": "a pipeline's stages compute by torch's schedule, piece by piece",
        "memory_format": "a pipeline's stages send each other contiguous tensors",
    }
    LEAST_TORCH = "2.10"  # the first whose schedules need not return outputs (return_outputs)

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches (``chunks``)."""
        return self.options["chunks"]

    @property
    def stages(self) -> int:
        """The number of stages: one per rank."""
        return self.cell.hardware.devices * self.cell.hardware.nodes

    @property
    def batch_norm_scope(self) -> str:
        """Each micro-batch, if there are several."""
        if self.micro_batches == 1:
            return super().batch_norm_scope
        return "each micro-batch, running statistics not deferred"

    @property
    def pipeline_bound(self) -> float:
        """The bound: m equal micro-batches take m + n - 1 turns on n stages, and m * n on one."""
        return self.micro_batches * self.stages / (self.micro_batches + self.stages - 1)

    def check(self) -> Iterator[str]:
        """Require two stages, which exchange nothing but activations and their gradients."""
        training = self.cell.training
        if self.stages < 2:
            yield (
                "a pipeline over processes needs two devices or more; choose other hardware, or "
                "strategy gpipe with several stages on one device"
            )
        if training.batch_norm == "synchronized" and self.micro_batches > 1:
            yield (
                "batch_norm synchronized: a pipeline normalises each micro-batch by itself; choose "
                "local, or chunks: 1"
            )
        if training.max_length is not None and training.padding == "longest":
            yield (
                "padding longest: the stages of a pipeline send each other tensors of one size; "
                "choose fixed"
            )
        if training.precision == "fp16":
            yield (
                "precision fp16: a pipeline's stages do not tell each other of gradients that "
                "overflowed; choose bf16 or fp32"
            )

    @classmethod
    def certified(cls) -> Iterator[tuple[int, dict]]:
        """Yield both schedules, with fewer micro-batches than stages, as many, and more."""
        for schedule in cls.OPTIONS["schedule"]["enum"]:
            for chunks in (1, 2, 4, 8):
                yield 2, {"schedule": schedule, "chunks": chunks}

    @property
    def takes_images(self) -> bool:
        """Whether this is the first rank: the others receive activations."""
        return self.rank == 0

    @property
    def shows(self) -> bool:
        """Whether this is the last rank, which computes the loss."""
        return self.rank == self.world_size - 1

    def wrap(self, blocks: nn.Sequential) -> nn.Module:
        """Return this rank's stage."""
        from parbench.strategies._pipe import Pipe

        return Pipe(self.staged(blocks), self.rank, self.devices[0], self.sample(), **self.options)

    def watch(self, phases: Any, model: Any, optimizer: Any) -> None:
        """Count as exchange: a rank's waits for messages between micro-batches; as bubble, those
        while another rank still computes.
        """
        from torch import distributed

        phases.in_turns = True
        phases.exchanging_in(distributed.Work, "wait")

    def backward(
        self,
        model: Any,
        images: torch.Tensor,
        labels: torch.Tensor,
        loss: Loss,
        scaler: torch.amp.GradScaler,
    ) -> torch.Tensor:
        """Compute gradients from the first rank's images and the last's labels, unscaled."""
        return model.train_batch(images, labels, loss)

    def whole(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the tensors of all ranks, from the first stage to the last.

        Sent as a safetensors file, since torch would pickle anything but a tensor.
        """
        import torch
        from safetensors.torch import load, save
        from torch import distributed

        # Numbered, since safetensors files have an order of their own.
        numbered = {
            f"{number:06}.{name}": value.detach().cpu().contiguous()
            for number, (name, value) in enumerate(tensors.items())
        }
        sent = torch.frombuffer(bytearray(save(numbered)), dtype=torch.uint8)
        whole = {}
        for rank in range(self.world_size):
            size = torch.tensor([len(sent)], device=self.devices[0])
            distributed.broadcast(size, rank)
            received = sent if rank == self.rank else torch.empty(int(size), dtype=torch.uint8)
            received = received.to(self.devices[0])
            distributed.broadcast(received, rank)
            stage_tensors = load(received.cpu().numpy().tobytes())
            whole |= {name.partition(".")[2]: stage_tensors[name] for name in sorted(stage_tensors)}
        return whole
