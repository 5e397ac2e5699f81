"""One rank's stages of a pipeline, for batches of any size."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)

ONE_STAGE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
SEVERAL_STAGES = {
    "gpipe": ScheduleLoopedBFS,
    "1f1b": ScheduleInterleaved1F1B,
    "zbv": ScheduleZBVZeroBubble,
}


class Pipe(nn.Module):
    """The stages of ``staged`` on one rank, on ``device``, under their names in the whole model.

    ``placement``: the rank of each stage; ``interleaves``: returns whether interleaved 1F1B accepts
    a number of micro-batches.

    torch's schedules need micro-batches of equal shape. A batch is cut as evenly as possible, so
    there are at most two sizes, and all micro-batches of one size go through the pipeline together.
    Gradients and losses are sums, so those of the two passes add up.
    """

    def __init__(
        self,
        staged: nn.Sequential,
        placement: list[int],
        rank: int,
        device: torch.device,
        sample: torch.Tensor,
        schedule: str,
        chunks: int,
        interleaves: Callable[[int], bool],
    ):
        super().__init__()
        self.placement, self.rank, self.number = placement, rank, len(staged)
        self.own = [index for index, each in enumerate(placement) if each == rank]
        self.device, self.schedule, self.chunks = device, schedule, chunks
        self.interleaves = interleaves
        # Tensors arrive contiguous, so they must be sent contiguous.
        for stage in staged:
            stage.register_forward_hook(lambda module, inputs, output: output.contiguous())
        self.shapes = _shapes(staged, sample)
        for index in self.own:
            self.add_module(str(index), staged[index].to(device))
        self._loss: Callable = nn.functional.cross_entropy
        self._made: dict[tuple, Any] = {}

    @property
    def is_last(self) -> bool:
        """Whether this rank has the last stage and therefore the logits."""
        return self.number - 1 in self.own

    def forward(self, images: torch.Tensor) -> torch.Tensor | None:
        """Return logits [B, classes] from the last stage, None on other ranks. ``images``:
        [B, 3, S, S] on the rank of the first stage, [B, 0] on others.

        Computes no gradients; ``train_batch`` does.
        """
        if self.schedule == "zbv":
            return self._forward_by_stage(images)
        outputs = [
            schedule.step(*self._taken(images, part))
            for schedule, part in self._passes(len(images), training=False)
        ]
        return torch.cat(outputs) if self.is_last else None

    def _forward_by_stage(self, images: torch.Tensor) -> torch.Tensor | None:
        """Do the same as ``forward``, taking all micro-batches through one stage after the other.

        Without gradients, torch 2.15 runs no schedule in which a rank has adjacent stages.
        """
        sizes = [len(part) for part in torch.arange(len(images)).tensor_split(self.chunks)]
        values = list(images.split([size for size in sizes if size > 0]))
        for index in self.own:
            # The first stage receives nothing, like a stage whose predecessor is on this rank.
            before = self.placement[max(index - 1, 0)]
            after = self.placement[min(index + 1, self.number - 1)]
            shape, dtype = self.shapes[index]
            for at, value in enumerate(values):
                if before != self.rank:
                    values[at] = torch.empty(len(value), *shape, dtype=dtype, device=self.device)
                    distributed.recv(values[at], before)
                values[at] = self.get_submodule(str(index))(values[at])
                if after != self.rank:
                    distributed.send(values[at], after)
        return torch.cat(values) if self.is_last else None

    def train_batch(
        self, images: torch.Tensor, labels: torch.Tensor, loss: Callable
    ) -> torch.Tensor:
        """Add the gradients of ``loss(logits, labels)``, a sum over samples, to the parameters.

        Returns the loss, detached; zero on ranks without the last stage.
        """
        self._loss = loss
        total = torch.zeros((), device=self.device)
        for schedule, part in self._passes(len(images), training=True):
            losses: list[torch.Tensor] = []
            target = labels[part].to(self.device) if self.is_last else None
            inputs = self._taken(images, part)
            schedule.step(*inputs, target=target, losses=losses, return_outputs=False)
            total = total + sum(each.detach() for each in losses)
        return total

    def _taken(self, images: torch.Tensor, part: slice) -> tuple[torch.Tensor, ...]:
        """Return the input of the first rank; empty on the others, which receive activations."""
        return (images[part],) if 0 in self.own else ()

    def _passes(self, samples: int, training: bool) -> Iterator[tuple[Any, slice]]:
        """Yield the schedules for a batch of ``samples``, each with the slice that it takes."""
        sizes = [len(part) for part in torch.arange(samples).tensor_split(self.chunks)]
        start = 0
        for size, equal_sizes in itertools.groupby(sizes):
            count = len(list(equal_sizes))
            stop = start + count * size
            if size > 0:
                yield self._schedule(count, size, training), slice(start, stop)
            start = stop

    def _schedule(self, number: int, size: int, training: bool) -> Any:
        """Return the schedule of ``number`` micro-batches of ``size`` samples, cached."""
        key = number, size, training
        if key not in self._made:
            stages = [self._stage(index, size, training) for index in self.own]
            kind = self._kind(number)
            loss = (lambda *samples: self._loss(*samples)) if training else None
            taken = stages[0] if len(stages) == 1 else stages
            self._made[key] = kind(taken, number, loss_fn=loss, scale_grads=False)
        return self._made[key]

    def _kind(self, number: int) -> Any:
        """Return the class of schedule for ``number`` micro-batches, GPipe's where torch has no
        other."""
        if len(self.own) == 1:
            # With fewer micro-batches than stages, 1F1B equals GPipe.
            return ONE_STAGE[self.schedule if number >= self.number else "gpipe"]
        in_turn = self.schedule != "1f1b" or self.interleaves(number)
        return SEVERAL_STAGES[self.schedule if in_turn else "gpipe"]

    def _stage(self, index: int, size: int, training: bool) -> PipelineStage:
        """Return a stage that takes micro-batches of ``size`` samples."""
        inputs, outputs = (
            torch.empty(
                size,
                *shape,
                dtype=dtype,
                device="meta",
                requires_grad=training and dtype.is_floating_point,
            )
            for shape, dtype in self.shapes[index : index + 2]
        )
        module = self.get_submodule(str(index))
        return PipelineStage(module, index, self.number, self.device, inputs, outputs)


@torch.no_grad()
def _shapes(staged: nn.Sequential, sample: torch.Tensor) -> list[tuple[torch.Size, torch.dtype]]:
    """Return the shape (of one sample) and dtype before each stage and after the last one.

    Otherwise torch would infer them from a batch in the first timed epoch.
    """
    value = sample
    shapes = [(value.shape[1:], value.dtype)]
    for stage in staged:
        # A copy, since one device may not hold all stages; eval() leaves RNG and statistics
        # unchanged.
        value = copy.deepcopy(stage).eval().to(sample.device)(value)
        shapes.append((value.shape[1:], value.dtype))
    return shapes
