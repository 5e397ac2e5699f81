"""Time a cell's training steps in our loop and in a bare one with the same settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.nn import functional

from parbench import strategies
from parbench.cell import Cell
from parbench.data import loader
from parbench.measure.clocks import Stopwatch
from parbench.strategies._stages import DTYPES
from parbench.training import loop, set_up
from parbench.training.optimizers import OPTIMIZERS, grad_scaler, schedule
from parbench.training.progress import Heartbeat
from parbench.training.run import Run


def contenders(cell: Cell, data: Path, steps: int) -> dict[str, Callable[[], float]]:
    """Return functions that take ``steps`` of eager training and return their seconds: in our loop
    and in a bare one, which has no augmentation, counters or checks whether to stop.
    """
    set_up.prepare(cell)
    strategy = strategies.of(cell)
    strategy.setup()
    run = Run(cell, data, strategy, Heartbeat(0))
    loop.warm_up(run, 1)
    loop.begin(run)
    run.model.train()
    size = cell.training.global_batch
    spans = [(start, stop) for start, stop in run.bounds if stop - start == size]
    order = run.order(0)
    batches = itertools.cycle([order[start:stop] for start, stop in spans])
    bare = _bare(run, loader.load(data, strategy.devices[0]), order, spans)

    def ours() -> None:
        total = torch.zeros((), device=strategy.devices[0])
        for _ in range(steps):
            total.add_(run.step(next(batches), 0), alpha=size)
            run.next_rate()
            run.beat("training")
            run.checkpoint_timer.due("training")

    def timed(work: Callable[[], object]) -> float:
        with Stopwatch(strategy.devices) as watch:
            work()
        return watch.seconds

    return {
        "the loop": lambda: timed(ours),
        "a bare loop": lambda: timed(lambda: [next(bare) for _ in range(steps)]),
    }


def _bare(
    run: Run, data: loader.LoadedDataset, order: torch.Tensor, spans: list[tuple[int, int]]
) -> Iterator[None]:
    """Train the model of ``run`` from the start, one step per item, as a page of plain PyTorch
    does."""
    training, device = run.training, run.strategy.devices[0]
    model = run.build().to(device)
    if training.memory_format == "channels_last":
        model = model.to(memory_format=torch.channels_last)
    optimizer = OPTIMIZERS[training.optimizer](
        list(model.parameters()), training.learning_rate, training
    )
    scheduler = schedule(optimizer, training, training.learning_rate, 1)
    scaler, dtype = grad_scaler(training.precision == "fp16"), DTYPES[training.precision]
    mean, std = (
        torch.tensor(each, device=device).view(1, 3, 1, 1) for each in (data.mean, data.std)
    )
    model.train()
    for start, stop in itertools.cycle(spans):
        samples = order[start:stop]
        images = (data.train_images[samples].float() / 255 - mean) / std
        if training.memory_format == "channels_last":
            images = images.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype, enabled=dtype is not torch.float32):
            logits = model(images)
        loss = functional.cross_entropy(logits.float(), data.train_labels[samples])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        yield
