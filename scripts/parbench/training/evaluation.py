"""Predict the test set with torch, on all ranks together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from parbench.measure.clocks import Stopwatch
from parbench.training import snapshot
from parbench.training.run import Run


@torch.no_grad()
def evaluate(run: Run) -> tuple[torch.Tensor, float | None]:
    """Return the predicted classes [N] (int64, CPU) and the mean loss, on every rank.

    N is the size of the whole test set or, with `steps`, of its first batches, equally many per
    rank. Each rank predicts its share, without padding. ``run.inference`` gets the time: as in a
    pair, it waits for the devices at the start and the end, not after each batch. A run that stops
    here evaluates from the beginning when it resumes. Raises Stopped.
    """
    strategy = run.strategy
    strategy.broadcast_buffers(run.model)
    model = strategy.unwrap(run.model)
    model.eval()
    count, parts = _parts(run)
    device = strategy.devices[0]
    if run.in_last_epoch and not run.evaluated:
        # Warm up first allocations and the choice of kernels, for a full batch and the last one.
        for part in parts[:1] + parts[1:][-1:]:
            model(run.augment.test_batch(*_span(part))[0])
    run.evaluated = True
    outputs: list[tuple[torch.Tensor | None, torch.Tensor]] = []  # logits and labels of each part
    seconds = 0.0
    while len(outputs) < len(parts):
        with Stopwatch(strategy.devices) as watch:
            due = _predict_until_due(run, model, parts, outputs)
        seconds += watch.seconds
        if due:
            snapshot.write(run)
    predicted = torch.zeros(count, dtype=torch.int64, device=device)
    loss = torch.zeros(1, dtype=torch.float64, device=device)
    for part, (logits, labels) in zip(parts, outputs, strict=True):
        if len(part) > 0 and logits is not None:
            logits, labels = logits.float(), labels.to(logits.device)
            loss += functional.cross_entropy(logits, labels, reduction="sum").to(device)
            predicted[slice(*_span(part))] = logits.argmax(1).to(device)
    strategy.reduce(predicted)  # each rank has zeros outside its share
    strategy.reduce(loss)
    slowest = strategy.reduced([seconds], "max")[0]
    run.inference = {"samples": count, "seconds": slowest}
    mean = loss.item() / count
    return predicted.cpu(), mean if math.isfinite(mean) else None


def _predict_until_due(run: Run, model: nn.Module, parts: list, outputs: list) -> bool:
    """Append to ``outputs`` until a checkpoint is due (return True) or all ``parts`` are done
    (return False)."""
    for part in parts[len(outputs) :]:
        with run.profile.phase("inference"):
            images, labels = run.augment.test_batch(*_span(part))
            logits = model(images)
            # A copy: a compiled model may return the same memory each time (CUDA graphs).
            outputs.append((None if logits is None else logits.clone(), labels))
        run.beat("evaluation", len(outputs) * run.training.evaluation_batch)
        if run.checkpoint_timer.due("evaluation"):
            return True
    return False


def passes(run: Run) -> Iterator[Callable[[], object]]:
    """Yield a function for each batch size of this rank, which runs an untimed forward pass."""
    model = run.strategy.unwrap(run.model)

    @torch.no_grad()
    def predict(start: int, stop: int) -> None:
        model.eval()
        model(run.augment.test_batch(start, stop)[0])

    _, parts = _parts(run)
    sizes = {stop - start: (start, stop) for start, stop in map(_span, parts)}
    for start, stop in sizes.values():
        yield partial(predict, start, stop)


def _parts(run: Run) -> tuple[int, list[torch.Tensor]]:
    """Return the number of samples to test and this rank's batches of sample indices.

    Every rank gets equally many batches, some of which may be empty, because ranks check for
    requests together and, with some strategies, compute together.
    """
    batch, ranks = run.training.evaluation_batch, run.strategy.data_parallel_size
    count = len(run.data.test_labels)
    if run.training.steps is not None:
        count = min(count, run.training.steps * batch * ranks)
    share = run.mine(torch.arange(count))
    return count, [
        share[start : start + batch] for start in range(0, math.ceil(count / ranks), batch)
    ]


def turns(run: Run) -> tuple[Callable[[], int], list[int]]:
    """Return a function that predicts each rank's next test batch and returns the number of samples
    over all ranks; and the PIDs of helper processes, of which there are none."""
    run.strategy.broadcast_buffers(run.model)
    model = run.strategy.unwrap(run.model).eval()
    parts = itertools.cycle(_whole_batches(run))

    def step() -> int:
        start, stop = next(parts)
        with torch.no_grad():
            model(run.augment.test_batch(start, stop)[0])
        run.beat("turn")
        return min((stop - start) * run.strategy.data_parallel_size, len(run.data.test_labels))

    return step, []


def _whole_batches(run: Run) -> list[tuple[int, int]]:
    """Return (start, stop) of this rank's full batches, or of its first one if none is full."""
    _, parts = _parts(run)
    full_parts = [part for part in parts if len(part) == run.training.evaluation_batch]
    return [_span(part) for part in full_parts or parts[:1]]


def _span(part: torch.Tensor) -> tuple[int, int]:
    """Return (start, stop) of the consecutive samples ``part``; (0, 1) if it is empty.

    A rank without samples takes part with an image that does not count.
    """
    return (int(part[0]), int(part[-1]) + 1) if len(part) > 0 else (0, 1)
