"""One rank's stage of a pipeline, which takes batches of any size."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Pipe(nn.Module):
    """The stage ``index`` of ``staged``, on ``device``, under its name in the whole model.

    torch's schedules need micro-batches of equal shape. A batch is cut as evenly as possible, so
    there are at most two sizes, and all micro-batches of one size go through the pipeline together.
    Gradients and losses are sums, so those of the two passes add up.
    """

    def __init__(
        self,
        staged: nn.Sequential,
        index: int,
        device: torch.device,
        sample: torch.Tensor,
        schedule: str,
        chunks: int,
    ):
        super().__init__()
        self.index, self.number = index, len(staged)
        self.device, self.schedule, self.chunks = device, schedule, chunks
        # Tensors are received contiguous, so they must be sent contiguous.
        for stage in staged:
            stage.register_forward_hook(lambda module, inputs, output: output.contiguous())
        self.shapes = _shapes(staged, sample)[index : index + 2]
        self.add_module(str(index), staged[index].to(device))
        self._loss: Callable = nn.functional.cross_entropy
        self._made: dict[tuple, Any] = {}

    @property
    def is_last(self) -> bool:
        """Whether this is the last rank, which has the logits."""
        return self.index == self.number - 1

    def forward(self, images: torch.Tensor) -> torch.Tensor | None:
        """Return logits [B, classes] on the last rank, None on others. ``images``: [B, 3, S, S] on
        the first rank, [B, 0] on others.

        Computes no gradients: that is done by ``train_batch``.
        """
        outputs = [
            schedule.step(*self._taken(images, part))
            for schedule, part in self._passes(len(images), training=False)
        ]
        return torch.cat(outputs) if self.is_last else None

    def train_batch(
        self, images: torch.Tensor, labels: torch.Tensor, loss: Callable
    ) -> torch.Tensor:
        """Add the gradients of ``loss(logits, labels)``, a sum over samples, to the parameters'.

        Returns the loss, detached; zero except on the last rank.
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
        """Return the first rank's input; none on the others, which receive activations."""
        return (images[part],) if self.index == 0 else ()

    def _passes(self, samples: int, training: bool) -> Iterator[tuple[Any, slice]]:
        """Yield the schedules for a batch of ``samples``, each with its slice of the samples."""
        sizes = [len(part) for part in torch.arange(samples).tensor_split(self.chunks)]
        start = 0
        for size, equal_sizes in itertools.groupby(sizes):
            count = len(list(equal_sizes))
            stop = start + count * size
            if size > 0:
                yield self._schedule(count, size, training), slice(start, stop)
            start = stop

    def _schedule(self, number: int, size: int, training: bool) -> Any:
        """Return the schedule of ``number`` micro-batches of ``size`` samples, made once."""
        key = number, size, training
        if key not in self._made:
            inputs, outputs = (
                torch.empty(
                    size,
                    *shape,
                    dtype=dtype,
                    device="meta",
                    requires_grad=training and dtype.is_floating_point,
                )
                for shape, dtype in self.shapes
            )
            stage = PipelineStage(
                self.get_submodule(str(self.index)),
                self.index,
                self.number,
                self.device,
                input_args=inputs,
                output_args=outputs,
            )
            # With fewer micro-batches than stages 1F1B equals GPipe, and torch allows only GPipe.
            kind = SCHEDULES[self.schedule if number >= self.number else "gpipe"]
            loss = (lambda *samples: self._loss(*samples)) if training else None
            self._made[key] = kind(stage, number, loss_fn=loss, scale_grads=False)
        return self._made[key]


@torch.no_grad()
def _shapes(staged: nn.Sequential, sample: torch.Tensor) -> list[tuple[torch.Size, torch.dtype]]:
    """Return the shape (of one sample) and dtype before each stage and after the last one.

    Without these, torch would infer them with a batch within the first timed epoch.
    """
    value = sample
    shapes = [(value.shape[1:], value.dtype)]
    for stage in staged:
        # A copy, since one device need not hold all stages; eval() leaves RNG and statistics alone.
        value = copy.deepcopy(stage).eval().to(sample.device)(value)
        shapes.append((value.shape[1:], value.dtype))
    return shapes
