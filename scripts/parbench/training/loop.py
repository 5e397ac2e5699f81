"""The training loop of one rank, common to all strategies: data, mathematics and clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from parbench import models
from parbench.cell import Cell
from parbench.data import disk_input, loader, pil_input, pretrained, text_input
from parbench.errors import ParbenchError
from parbench.measure import clocks, profiling
from parbench.measure.meters import Meters, tensors_in
from parbench.training import (
    batch_norm,
    checkpoint,
    compiling,
    evaluation,
    learning_rate,
    progress,
    snapshot,
)
from parbench.training.companions import Companions
from parbench.training.endings import Diverged, Stopped
from parbench.training.optimizers import OPTIMIZERS, grad_scaler, schedule
from parbench.training.progress import Heartbeat

if TYPE_CHECKING:
    from torch import nn

    from parbench.strategies._base import Strategy

INPUTS = {
    "tensor": loader.Augment,
    "disk": disk_input.DiskInput,
    "pil": pil_input.PilInput,
}
Batch = tuple[torch.Tensor, int]  # sample indices and epoch


class Run:
    """One rank's training of a cell with a ``strategy`` that has been set up.

    ``bounds``: (start, stop) of each batch in an epoch's order; ``samples``: per epoch; ``place``:
    how far training has come; ``history``: an entry for each completed epoch.
    """

    def __init__(self, cell: Cell, data_folder: Path, strategy: Strategy, heartbeat: Heartbeat):
        self.cell = cell
        self.training = cell.training
        self.strategy = strategy
        self.heartbeat = heartbeat
        self.meters = Meters(strategy)
        self._load_data(data_folder)
        self._build_model(data_folder)
        self._make_optimizer()
        self.profile = profiling.load(self.training.profile).Profile(self)
        self.companions = Companions(self)
        self.place = checkpoint.Place()
        self.history: list[dict] = []
        self.inference: dict | None = None  # of the last evaluation
        self.evaluated = False  # by this process
        self.extra: dict[str, float] = {}  # further metrics, such as those of Spark's engine

        # Restored from a checkpoint when a run is resumed.
        self.started = clocks.now()
        self.resumed_from: list[dict] = []
        self.kept = self.place.json()  # where the run would resume if it stopped now
        self.store: checkpoint.Store | None = None
        self.machine = ""
        every = cell.run.checkpoint_seconds
        self.lookout = checkpoint.Lookout(every, strategy.rank, strategy.reduced)

    def _load_data(self, folder: Path) -> None:
        settings, strategy = self.training, self.strategy
        self.data = loader.load(
            folder,
            strategy.devices[0],
            train_samples=self.cell.dataset.train_samples,
            test_samples=self.cell.dataset.test_samples,
            verify=strategy.local_rank == 0,  # once per node
            vocabulary=models.vocabulary(self.cell.model.name),
            max_length=settings.max_length,
            keeps_on_disk=settings.input == "disk",
        )
        if settings.normalization != "dataset":
            mean, std = loader.MOMENTS[settings.normalization]
            self.data = replace(self.data, mean=mean, std=std)
        self.augment: Any
        if self.data.vocabulary is not None and strategy.takes_images:
            self.augment = text_input.TextInput(self.data, settings.padding)
        else:
            input_class = INPUTS[settings.input] if strategy.takes_images else loader.Labels
            self.augment = input_class(
                self.data, self.cell.seed, settings.image_size, settings.augment
            )
        self.input = self.augment  # without a wrapper
        if settings.memory_format == "channels_last":
            self.augment = loader.ChannelsLast(self.augment)
        self.data = self.data.without_train_images()  # `augment` has them
        samples, steps = len(self.data.train_labels), settings.steps
        bounds = loader.batches(samples, settings.global_batch, settings.min_tail)
        if steps is not None and steps > len(bounds):
            raise ParbenchError(
                f"cell {self.cell.id}: steps {steps}: an epoch of {samples} samples in batches of "
                f"{settings.global_batch} has {len(bounds)}; choose at most {len(bounds)}, and "
                "more epochs"
            )
        self.bounds = bounds[:steps]
        self.samples = self.bounds[-1][1]

    def _build_model(self, data_folder: Path) -> None:
        """Build the model on the CPU before wrapping it: the same initial weights everywhere."""
        torch.manual_seed(self.cell.seed)
        blocks = self.build()
        pretrained.load(blocks, self.cell, data_folder, verify=self.strategy.local_rank == 0)
        self.ranks = batch_norm.Ranks(self._exchanged)
        is_parallel = self.strategy.data_parallel_size > 1
        if self.training.batch_norm == "synchronized" and is_parallel:
            batch_norm.synchronize(blocks, self.ranks)
        self.model: nn.Module = self.strategy.wrap(blocks)
        self.parameters = dict(self.model.named_parameters())

    def build(self) -> nn.Sequential:
        """Build the cell's model, not wrapped yet."""
        model = self.cell.model
        input_spec = self.data.vocabulary or self.training.image_size
        return models.load(model.name).build(len(self.data.classes), input_spec, model.options)

    def _make_optimizer(self) -> None:
        self.peak_rate = learning_rate.peak(self.training, self.strategy.data_parallel_size)
        self.last_rate = self.peak_rate  # of the last completed step
        optimizer = OPTIMIZERS[self.training.optimizer](
            self.parameters.values(), self.peak_rate, self.training
        )
        self.optimizer: Any = self.strategy.optimizer(optimizer, self.model)
        self.scaler = grad_scaler(self.training.precision == "fp16")
        self.scheduler: Any = None  # set when training begins

    # ------------------------------------------------------------ one step

    def order(self, epoch: int) -> torch.Tensor:
        """Return the order of all training samples in ``epoch``: int64 indices, on the device of
        the dataset if batches are made there, else on the CPU."""
        order = loader.order(self.cell.seed, epoch, len(self.data.train_labels))
        batches_on_device = self.training.input == "tensor" and self.data.vocabulary is None
        return order.to(self.strategy.devices[0] if batches_on_device else "cpu")

    def mine(self, samples: torch.Tensor) -> torch.Tensor:
        """Return this rank's share of ``samples`` [N]."""
        strategy = self.strategy
        return samples.tensor_split(strategy.data_parallel_size)[strategy.data_parallel_rank]

    def micro_batches(self, batch: torch.Tensor) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield each micro-batch in this rank's share of the global ``batch``, and the weight of a
        sample's loss; one, the share, without gradient_accumulation."""
        for samples in self.mine(batch).tensor_split(self.training.gradient_accumulation):
            if len(samples) > 0:
                yield samples, self.strategy.data_parallel_size / len(batch)
            else:  # must still take part in collectives, with gradients of zero
                yield batch[:2], 0.0

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the summed loss of N samples: ``logits`` [N, classes], ``labels`` [N]."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        labels = labels.to(logits.device, non_blocking=True)
        smoothing = self.training.label_smoothing
        return functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)

    def step(self, batch: torch.Tensor, epoch: int) -> torch.Tensor:
        """Take one optimizer step on the global ``batch`` (sample indices [B], of ``order``).

        Returns this rank's loss, detached: the sum over its samples times data-parallel size / B.
        Data parallelism averages it over ranks, which gives the mean over the global batch even if
        the ranks' shares differ in size.
        """
        self.optimizer.zero_grad()
        *others, last = self.micro_batches(batch)
        with self.profile.phase("compute"):
            losses = []
            for micro_batch in others:
                with self.strategy.accumulating(self.model):
                    losses.append(self._add_gradients(*micro_batch, epoch))
            loss = self._add_gradients(*last, epoch)
        with self.profile.phase("update"):
            self.strategy.step(self.optimizer, self.scaler)
        return sum(losses, loss)

    def _add_gradients(self, samples: torch.Tensor, weight: float, epoch: int) -> torch.Tensor:
        """Add the gradients of a micro-batch, whose samples' losses have this weight; return its
        loss, detached."""
        self.ranks.counts = weight > 0
        with self.profile.phase("input"):
            images, labels = self.augment.train_batch(samples, epoch)
        return self.strategy.backward(
            self.model,
            images,
            labels,
            lambda logits, labels: self.loss(logits, labels) * weight,
            self.scaler,
        )

    def ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield ``batches``; an input that reads from disk reads the next ones meanwhile."""
        if not isinstance(self.input, disk_input.DiskInput):
            return batches
        return self.input.ahead(
            batches, lambda batch: (samples for samples, _ in self.micro_batches(batch))
        )

    def _exchanged(self, values: torch.Tensor) -> torch.Tensor:
        """Sum ``values`` over all ranks in the middle of a step (synchronized BatchNorm)."""
        with self.profile.phase("exchange"):
            return self.strategy.reduce(values)

    def next_rate(self) -> None:
        """Advance to the learning rate of the next step."""
        self.last_rate = self.optimizer.param_groups[0]["lr"]
        self.scheduler.step()

    def state(self) -> dict[str, torch.Tensor]:
        """Return this rank's weights and buffers by name."""
        return dict(self.model.state_dict())

    def held(self) -> tuple[Iterator[torch.Tensor], Iterator[torch.Tensor]]:
        """Return what this rank holds between steps: the dataset, and the model's state."""
        return tensors_in([self.data, self.augment]), self.strategy.held(self.model, self.optimizer)

    def beat(self, phase: str, step: int | None = None) -> None:
        """Send a heartbeat with this rank's position in ``phase``, by default ``place``."""
        self.heartbeat.beat(phase, self.place.epoch + 1, self.place.step if step is None else step)

    # ------------------------------------------------------------ before the clock

    def warm_up(self, steps: int) -> None:
        """Take ``steps`` real training steps outside the clock, then undo their effects.

        First allocations, the choice of kernels and DDP's bucket building thus cost no timed step.
        If the last batch of an epoch has another size, one more step warms that size up. Weights,
        buffers, optimizer and loss scaler are restored, so that training starts from the seed's
        weights. Raises Stopped.
        """
        whole_state = self.strategy.whole(self.state())
        initial = {name: value.detach().cpu().clone() for name, value in whole_state.items()}
        rates = [group["lr"] for group in self.optimizer.param_groups]
        order = self.order(0)
        if self.training.compile != "none":
            passes = [*self.passes(self.bounds), *evaluation.passes(self)]
            self.extra["compile_seconds"] = compiling.compile_all(self, passes)
        batches = [self.bounds[number % len(self.bounds)] for number in range(steps)]
        start, stop = self.bounds[-1]
        if batches and stop - start not in {end - begin for begin, end in batches}:
            batches.append((start, stop))
        for number, (start, stop) in enumerate(batches):
            self.train_once(order[start:stop])
            self.heartbeat.beat("warm-up", 0, number)
            self.lookout.due("warm-up")
            if self.lookout.stop:
                raise Stopped
        self.strategy.load(self.model, initial)
        # Zeroed, not deleted: libraries hold references to parts of the state.
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
        self.optimizer.zero_grad()
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self.scaler = grad_scaler(self.scaler.is_enabled())

    def passes(self, bounds: list[tuple[int, int]]) -> Iterator[Callable[[], object]]:
        """Yield a training step for each distinct batch size in ``bounds``."""
        order, sizes = self.order(0), {stop - start: (start, stop) for start, stop in bounds}
        for start, stop in sizes.values():
            yield partial(self.train_once, order[start:stop])

    def train_once(self, batch: torch.Tensor) -> None:
        """Take a training step that belongs to no epoch."""
        self.model.train()
        self.step(batch, 0)

    def find_checkpoint(self, folder: Path, environment: dict) -> int | None:
        """Return the number of the checkpoint in ``folder`` to resume from; None to start afresh.

        All ranks get the same answer. ``environment``: that of metrics.json. Later checkpoints are
        written to ``folder`` as well.
        """
        self.machine = environment["machine"]["fingerprint"]
        self.store = checkpoint.Store(folder, checkpoint.key(self.cell, environment))
        number = self.store.find() if self.strategy.rank == 0 else None
        if number:
            self.kept = self.store.read(number)[0]["kept"]
        return round(self.strategy.reduced([float(number or 0)], "sum")[0]) or None

    def begin(self, found: int | None = None) -> None:
        """Prepare for the first step, or for the one after the checkpoint ``found``."""
        self.scheduler = schedule(self.optimizer, self.training, self.peak_rate, len(self.bounds))
        # So that dropout differs between ranks and repeats between runs.
        torch.manual_seed(self.cell.seed * 1_000_003 + self.strategy.rank)
        if found is not None:
            snapshot.resume(self, found)
        self.lookout.restart()
        self.companions.meet("ready", "start-up")

    # ------------------------------------------------------------ epochs

    @property
    def in_last_epoch(self) -> bool:
        """Whether the next evaluation, or the one in progress, is the last."""
        return self.place.epoch + 1 == self.training.epochs

    def train(self) -> None:
        """Train all epochs.

        Raises Diverged if a loss is not finite, and Stopped on the launcher's request.
        """
        epochs = self.training.epochs
        for epoch in range(self.place.epoch, epochs):
            loss, seconds = self.train_epoch()
            if not math.isfinite(loss):
                raise Diverged(f"the training loss became {loss} in epoch {epoch + 1} of {epochs}")
            self.companions.check()
            elapsed = seconds + (self.history[-1]["elapsed_seconds"] if self.history else 0.0)
            if epoch + 1 == epochs:
                self.companions.end_together(elapsed)
            self.predictions, test_loss = evaluation.evaluate(self)
            if test_loss is None:
                raise Diverged(f"the test loss is no number after epoch {epoch + 1} of {epochs}")
            accuracy = None
            if self.training.steps is not None:  # a few steps learn nothing worth testing
                test_loss = None
            else:
                correct = self.predictions == self.data.test_labels.cpu()
                accuracy = correct.double().mean().item()
            self.history.append(
                {
                    "epoch": epoch + 1,
                    "train_loss": loss,
                    "learning_rate": self.last_rate,
                    "seconds": seconds,
                    "elapsed_seconds": elapsed,
                    "samples_per_second": self.samples / seconds,
                    "test_accuracy": accuracy,
                    "test_loss": test_loss,
                }
            )
            self.place = checkpoint.Place(epoch + 1)
            if self.strategy.shows:
                seconds_left = elapsed / (epoch + 1) * (epochs - epoch - 1)
                print(progress.line(self.history[-1], epochs, seconds_left), flush=True)

    def train_epoch(self) -> tuple[float, float]:
        """Train the rest of the epoch of ``place``; return its mean loss and its seconds.

        The seconds are those of the slowest rank, without the writing of checkpoints.
        """
        self.model.train()
        place, strategy = self.place, self.strategy
        order = self.order(place.epoch)
        while place.step < len(self.bounds):
            with self.meters.timed():
                # A barrier: waiting for a late rank is not training time.
                strategy.reduce(torch.zeros(1, device=strategy.devices[0]))
                with clocks.Stopwatch(strategy.devices) as watch, self.profile.phase("other"):
                    due = self._train_until_due(order)
            slowest = strategy.reduced([watch.seconds], "max")[0]
            place.seconds += slowest
            self.profile.settle(watch.seconds, slowest)
            if due:
                snapshot.write(self)
        self.meters.hold(*self.held())
        total = strategy.reduced([place.loss], "sum")[0]
        return total / strategy.data_parallel_size / self.samples, place.seconds

    def _train_until_due(self, order: torch.Tensor) -> bool:
        """Take steps until a checkpoint is due (returns True) or the epoch ends (False)."""
        place = self.place
        total = torch.tensor(place.loss, device=self.strategy.devices[-1])
        due = False
        bounds = self.bounds[place.step :]
        for batch, epoch in self.ahead((order[start:stop], place.epoch) for start, stop in bounds):
            loss = self.step(batch, epoch)
            self.next_rate()
            # A step's loss is a mean over the batch, the epoch's a mean over its samples.
            total.add_(loss, alpha=len(batch))
            place.step += 1
            self.beat("training")
            due = self.lookout.due("training")
            if due:
                break
        place.loss = float(total)
        return due
