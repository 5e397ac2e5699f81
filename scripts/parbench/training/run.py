"""Train a cell on one rank, the same for all strategies: data, model, and the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from parbench import identity, models
from parbench.cell import Cell
from parbench.data import disk_input, loader, pil_input, pretrained, text_input
from parbench.errors import ParbenchError
from parbench.measure import clocks, profiling
from parbench.measure.meters import Meters, tensors_in
from parbench.strategies._base import Strategy
from parbench.training import batch_norm, checkpoint, learning_rate
from parbench.training.optimizers import OPTIMIZERS, grad_scaler
from parbench.training.progress import Heartbeat

if TYPE_CHECKING:
    from parbench.measure.metrics_types import (
        EnvironmentJson,
        EpochJson,
        InferenceJson,
        ResumedJson,
    )

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
        self.place = checkpoint.Place()
        self.history: list[EpochJson] = []
        self.predictions: torch.Tensor  # of the last evaluation
        self.inference: InferenceJson | None = None  # of the last evaluation
        self.evaluated = False  # by this process
        self.extra: dict[str, float | None] = {}  # further metrics, such as those of Spark's engine

        # Restored from a checkpoint when a run is resumed.
        self.started = clocks.now()
        self.resumed_from: list[ResumedJson] = []
        self.kept = self.place.json()  # where the run would resume if it stopped at this moment
        self.store: checkpoint.Store | None = None
        self.machine = ""
        every = cell.run.checkpoint_seconds
        self.checkpoint_timer = checkpoint.CheckpointTimer(every, strategy.rank, strategy.reduced)

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
        self.input = self.augment  # without the wrapper for channels-last
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
        self.ranks = batch_norm.RankSums(self._exchanged)
        is_parallel = self.strategy.data_parallel_size > 1
        if self.training.batch_norm == "synchronized" and is_parallel:
            batch_norm.synchronize(blocks, self.ranks)
        self.model: nn.Module = self.strategy.wrap(blocks)
        self.parameters: dict[str, torch.Tensor] = dict(self.model.named_parameters())

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
        sample's loss. Without gradient_accumulation the share is one micro-batch."""
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
        """Add the gradients of the micro-batch ``samples``, whose losses have this ``weight``;
        return its loss, detached."""
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
        """Yield ``batches``, while an input that reads from disk already reads the next ones."""
        if not isinstance(self.input, disk_input.DiskInput):
            return batches
        return self.input.ahead(
            batches, lambda batch: (samples for samples, _ in self.micro_batches(batch))
        )

    def _exchanged(self, values: torch.Tensor) -> torch.Tensor:
        """Return ``values`` summed over all ranks within a step (for synchronized BatchNorm)."""
        with self.profile.phase("exchange"):
            return self.strategy.reduce(values)

    def next_rate(self) -> None:
        """Advance to the learning rate of the next step."""
        self.last_rate = self.optimizer.param_groups[0]["lr"]
        self.scheduler.step()

    def state(self) -> dict[str, torch.Tensor]:
        """Return this rank's weights and buffers by name."""
        return dict(self.model.state_dict())

    def held_tensors(self) -> tuple[Iterator[torch.Tensor], Iterator[torch.Tensor]]:
        """Return what this rank holds between steps: the dataset, and the model's state."""
        return tensors_in([self.data, self.augment]), self.strategy.held_tensors(
            self.model, self.optimizer
        )

    def beat(self, phase: str, step: int | None = None) -> None:
        """Send a heartbeat with the ``phase`` and the step, by default that of ``place``."""
        self.heartbeat.beat(phase, self.place.epoch + 1, self.place.step if step is None else step)

    def passes(self, bounds: list[tuple[int, int]]) -> Iterator[Callable[[], object]]:
        """Yield a function for each distinct batch size in ``bounds``, which takes a training
        step."""
        order, sizes = self.order(0), {stop - start: (start, stop) for start, stop in bounds}
        for start, stop in sizes.values():
            yield partial(self.train_once, order[start:stop])

    def train_once(self, batch: torch.Tensor) -> None:
        """Take a training step that belongs to no epoch."""
        self.model.train()
        self.step(batch, 0)

    def find_checkpoint(self, folder: Path, environment: EnvironmentJson) -> int | None:
        """Return the number of the checkpoint in ``folder`` to resume from; None to start afresh.

        All ranks get the same answer. ``environment``: that of metrics.json. Later checkpoints are
        written to ``folder`` as well.
        """
        self.machine = environment["machine"]["fingerprint"]
        self.store = checkpoint.Store(folder, identity.recorded(self.cell, [environment]))
        number = self.store.find() if self.strategy.rank == 0 else None
        if number:
            self.kept = self.store.read(number)[0]["kept"]
        return round(self.strategy.reduced([float(number or 0)], "sum")[0]) or None

    @property
    def in_last_epoch(self) -> bool:
        """Whether the next evaluation, or the one in progress, is the last."""
        return self.place.epoch + 1 == self.training.epochs
