"""A pipeline over processes (torch.distributed.pipelining): one or more stages per rank, and
micro-batches in the schedule of GPipe (Huang et al. 2019), 1F1B (Narayanan et al. 2019, interleaved
2021) or ZB-V (Qi et al. 2024).
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
    """One rank of a process group, with its stages of the model."""

    OPTIONS: ClassVar[dict[str, dict]] = {
        "schedule": {
            "description": "gpipe: all forward passes, then all backward passes; 1f1b: in turn, "
            "so that a stage holds activations of no more micro-batches than there are stages; "
            "zbv: like 1f1b, but ranks compute weights' gradients while they would else wait",
            "enum": ["gpipe", "1f1b", "zbv"],
            "default": "1f1b",
        },
        "chunks": {
            "description": "number of micro-batches per batch",
            "type": "integer",
            "minimum": 1,
            "default": 4,
        },
        "stages_per_rank": {
            "description": "number of stages per rank: every n-th of the model on n ranks, with "
            "zbv one from each end; 1f1b with several is interleaved 1F1B",
            "type": "integer",
            "minimum": 1,
            "default": 1,
            "implied": True,
        },
    }
    REFUSES: ClassVar[dict[str, str]] = {
        "compile": "torch's schedule runs a pipeline's stages piece by piece",
        "memory_format": "a pipeline's stages send each other contiguous tensors",
        "gradient_accumulation": "a pipeline has its own micro-batches (chunks)",
    }
    LEAST_TORCH = "2.10"  # the first with return_outputs=False for schedules

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches (``chunks``)."""
        return self.options["chunks"]

    @property
    def stages(self) -> int:
        """The number of stages, over all ranks."""
        return self._ranks * self.options["stages_per_rank"]

    @property
    def _ranks(self) -> int:
        """The number of ranks, known to the plan before ``setup``."""
        return self.cell.hardware.devices * self.cell.hardware.nodes

    @property
    def placement(self) -> list[int]:
        """The rank of each stage."""
        ranks = list(range(self._ranks))
        if self.options["schedule"] == "zbv":
            return ranks + ranks[::-1]
        return ranks * self.options["stages_per_rank"]

    @property
    def pipeline_bound(self) -> float:
        """The upper bound on the speedup: m equal micro-batches take m * v * n turns on one device,
        for v stages on each of n ranks.

        A rank is idle until the first micro-batch arrives, and the last stage until it has passed
        all others. With zbv, it can compute gradients of weights instead.
        """
        m, n, v = self.micro_batches, self._ranks, self.options["stages_per_rank"]
        if self.options["schedule"] == "zbv":
            return n
        return m * v * n / max(m * v + n - 1, v * n + m - 1)

    def interleaves(self, micro_batches: int) -> bool:
        """Return whether torch's interleaved 1F1B accepts that number of micro-batches."""
        return micro_batches % max(1, micro_batches // self._ranks) == 0

    def least_torch(self) -> str | None:
        """Return 2.15, the tested version, for several stages per rank: earlier zbv gives wrong
        weights."""
        return "2.15" if self.options["stages_per_rank"] > 1 else super().least_torch()

    def check(self) -> Iterator[str]:
        """Require two ranks, settings for which exchanging activations and their gradients
        suffices, and options that go together."""
        training, each = self.cell.training, self.options["stages_per_rank"]
        schedule, chunks = self.options["schedule"], self.micro_batches
        if self._ranks < 2:
            yield (
                "a pipeline over processes needs two devices or more; choose other hardware, or "
                "strategy gpipe with several stages on one device"
            )
        if schedule == "zbv" and each != 2:
            yield f"schedule zbv needs stages_per_rank: 2, not {each}"
        if each > 1 and training.global_batch % chunks:
            yield (
                f"chunks {chunks} do not divide global_batch {training.global_batch}: with several "
                "stages a rank, micro-batches of two sizes would go through one after the other"
            )
        if schedule == "1f1b" and each > 1 and not self.interleaves(chunks):
            yield (
                f"chunks {chunks}: interleaved 1F1B takes them in rounds of equal size; choose a "
                f"multiple of the {self._ranks} ranks"
            )
        if training.batch_norm == "synchronized" and self.micro_batches > 1:
            yield (
                "batch_norm synchronized: a pipeline normalizes each micro-batch by itself; choose "
                "local, or chunks: 1"
            )
        if training.max_length is not None and training.padding == "longest":
            yield (
                "padding longest: pipeline stages send each other tensors of a fixed size; choose "
                "fixed"
            )
        if training.precision == "fp16":
            yield (
                "precision fp16: pipeline stages do not share gradient-overflow information, which "
                "loss scaling needs; choose bf16 or fp32"
            )

    @classmethod
    def certified(cls) -> Iterator[tuple[int, dict]]:
        """Yield all schedules, with fewer and more micro-batches than stages, and equally many."""
        for schedule in ("gpipe", "1f1b"):
            for chunks in (1, 2, 4, 8):
                yield 2, {"schedule": schedule, "chunks": chunks}
        for schedule in ("gpipe", "1f1b", "zbv"):
            for chunks in (1, 4, 8):
                yield 2, {"schedule": schedule, "chunks": chunks, "stages_per_rank": 2}

    @property
    def takes_images(self) -> bool:
        """Whether this is the first rank, since the others receive activations."""
        return self.rank == 0

    @property
    def prints_progress(self) -> bool:
        """Whether this rank has the last stage, which computes the loss."""
        return self.placement[-1] == self.rank

    def wrap(self, blocks: nn.Sequential) -> nn.Module:
        """Return this rank's stages."""
        from parbench.strategies._pipe import Pipe

        return Pipe(
            self.staged(blocks),
            self.placement,
            self.rank,
            self.devices[0],
            self.sample(),
            self.options["schedule"],
            self.micro_batches,
            self.interleaves,
        )

    def watch(self, phases: Any, model: Any, optimizer: Any) -> None:
        """Count as exchange a rank's waits for messages between micro-batches, and as bubble those
        waits during which another rank still computes.
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
        """Compute gradients from the first stage's images and the last stage's labels, unscaled."""
        return model.train_batch(images, labels, loss)

    def full_tensors(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the tensors of all ranks, from the first stage to the last.

        They are sent as a safetensors file, since torch would pickle anything but a tensor.
        """
        import torch
        from safetensors.torch import load, save
        from torch import distributed

        # Numbered, since safetensors does not keep the order of tensors.
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
        return dict(sorted(whole.items(), key=lambda item: _stage_of(item[0])))


def _stage_of(name: str) -> int:
    """Return a tensor's stage: the first number in its name, as in `exp_avg.0.block_1.bias`."""
    return next(int(part) for part in name.split(".") if part.isdigit())
