"""Train one cell: cell.json in, metrics.json out. The only training loop.

Started by scripts/launch.py, once a rank. A strategy supplies processes and devices, how the model
is wrapped, reductions and teardown; data, clock and mathematics are the same for all of them.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

import batch_norm
import checkpoint
import learning_rate
import loader
import measure
import models
import pil_input
import pretrained
import profiling
import strategies
from errors import ParbenchError, run_main
from progress import Display, Pulse

if TYPE_CHECKING:
    from torch import nn

OPTIMIZERS = {
    "sgd": lambda parameters, rate, t: torch.optim.SGD(
        parameters, rate, momentum=t["momentum"], weight_decay=t["weight_decay"]
    ),
    "adamw": lambda parameters, rate, t: torch.optim.AdamW(
        parameters, rate, weight_decay=t["weight_decay"]
    ),
}
SCHEDULES = {
    "constant": lambda optimizer, rate, steps: torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 1.0
    ),
    "cosine": lambda optimizer, rate, steps: torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, steps
    ),
    "onecycle": lambda optimizer, rate, steps: torch.optim.lr_scheduler.OneCycleLR(
        # The stated momentum holds.
        optimizer,
        rate,
        total_steps=steps,
        cycle_momentum=False,
    ),
}
INPUTS = {"tensor": loader.Augment, "pil": pil_input.PilInput}
# Between two looks whether the models beside this one have come as far.
MEET_SECONDS = 0.02


def grad_scaler(enabled: bool) -> torch.amp.GradScaler:
    """The loss scaler that fp16 needs; one that does nothing for other precisions."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cuda", enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)  # torch < 2.3


class Diverged(Exception):
    """The loss is no longer a number."""


class DivergedBeside(Diverged):
    """That of a model that trained at the same time: this one was not beside it to the end."""


class Stopped(Exception):
    """The launcher asked for the end; a checkpoint is kept."""


class Run:
    """One rank's training of one cell."""

    def __init__(self, cell: dict, data_folder: Path, strategy: Any, pulse: Pulse):
        self.cell = cell
        self.training = cell["training"]
        self.strategy = strategy
        self.pulse = pulse
        self.data = loader.load(
            data_folder,
            strategy.devices[0],
            train_samples=cell["dataset"]["train_samples"],
            test_samples=cell["dataset"]["test_samples"],
            verify=strategy.local_rank == 0,  # once a node is enough
        )
        made = INPUTS[self.training["input"]] if strategy.takes_images else loader.Labels
        self.augment = made(
            self.data, cell["seed"], self.training["image_size"], self.training["augment"]
        )
        self.bounds = self._bounds()
        self.samples = self.bounds[-1][1]  # of an epoch

        # The same initial weights for every strategy: on the CPU, before any wrapping.
        torch.manual_seed(cell["seed"])
        blocks = self.build()
        pretrained.load(blocks, cell, data_folder, verify=strategy.local_rank == 0)
        self.ranks = batch_norm.Ranks(self.exchanged)
        if self.training["batch_norm"] == "synchronized" and strategy.shares > 1:
            batch_norm.synchronize(blocks, self.ranks)
        self.model: nn.Module = strategy.wrap(blocks)
        self.parameters = dict(self.model.named_parameters())
        self.peak_rate = learning_rate.peak(self.training, strategy.shares)
        self.last_rate = self.peak_rate  # of the last step that was done
        self.optimizer = strategy.optimizer(
            OPTIMIZERS[self.training["optimizer"]](
                self.parameters.values(), self.peak_rate, self.training
            ),
            self.model,
        )
        self.scaler = grad_scaler(self.training["precision"] == "fp16")
        self.scheduler: Any = None
        self.profile = profiling.load(self.training["profile"]).Profile(self)
        self.history: list[dict] = []
        self.beside: list[dict] = []  # what came of the models that trained at the same time

        # What earlier parts of this run did, where it goes on from a checkpoint, and where it is.
        self.started = measure.now()
        self.resumed_from: list[dict] = []
        self._joules: float | None = 0.0
        self._peak: list[list[float]] = []
        self.place = checkpoint.Place()
        self.kept = self.place.told()  # where a run would go on that were stopped now
        self.inference: dict | None = None  # of the last evaluation
        self._evaluated = False  # by this process
        self.store: checkpoint.Store | None = None
        self.machine = ""
        self.lookout = checkpoint.Lookout(
            cell["run"]["checkpoint_seconds"], strategy.rank, self.reduced
        )

    def _bounds(self) -> list[tuple[int, int]]:
        """Where the batches of an epoch begin and end in its order; `steps` leaves the others out.

        ParbenchError when it asks for more than there are.
        """
        samples, steps = len(self.data.train_labels), self.training["steps"]
        batch = self.training["global_batch"]
        bounds = loader.batches(samples, batch, self.training["min_tail"])
        if steps is not None and steps > len(bounds):
            raise ParbenchError(
                f"cell {self.cell['id']}: steps {steps}: an epoch of {samples} samples in batches "
                f"of {batch} has {len(bounds)}; choose at most {len(bounds)}, and more epochs"
            )
        return bounds[:steps]

    def order(self, epoch: int) -> torch.Tensor:
        """Indices of all training samples (int64, on the CPU) as they come in ``epoch``."""
        return loader.order(self.cell["seed"], epoch, len(self.data.train_labels))

    @property
    def in_last_epoch(self) -> bool:
        """Whether the evaluation that comes next, or that goes on, is the last one."""
        return self.place.epoch + 1 == self.training["epochs"]

    def build(self) -> nn.Sequential:
        """The cell's model, not wrapped yet."""
        model = self.cell["model"]
        return models.load(model["name"]).build(
            len(self.data.classes), self.training["image_size"], model["options"]
        )

    def mine(self, samples: torch.Tensor) -> torch.Tensor:
        """This rank's share of ``samples`` [N]."""
        shares = self.strategy.shares
        return samples.tensor_split(shares)[self.strategy.rank % shares]

    def share(self, batch: torch.Tensor) -> tuple[torch.Tensor, float]:
        """This rank's part of the global ``batch``, and what a sample's loss counts for."""
        share = self.mine(batch)
        if len(share) == 0:  # a rank without samples still joins, with gradients of zero
            return batch[:2], 0.0
        return share, self.strategy.shares / len(batch)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The sum of the losses of some samples: ``logits`` [N, classes], ``labels`` [N]."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        labels = labels.to(logits.device, non_blocking=True)
        smoothing = self.training["label_smoothing"]
        return functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)

    def step(self, batch: torch.Tensor, epoch: int) -> torch.Tensor:
        """One optimizer step on the global ``batch`` (sample indices [B], on the CPU).

        Returns this rank's loss, detached: the sum over its samples times the number of shares
        over B. Averaged over shares, as data parallelism does, that is the mean over the global
        batch, also for an uneven tail.
        """
        self.optimizer.zero_grad()
        share, weight = self.share(batch)
        self.ranks.counts = weight > 0
        with self.profile.phase("compute"):
            with self.profile.phase("input"):
                images, labels = self.augment.train_batch(share, epoch)
            loss = self.strategy.backward(
                self.model,
                images,
                labels,
                lambda logits, labels: self.loss(logits, labels) * weight,
                self.scaler,
            )
        with self.profile.phase("update"):
            self.strategy.step(self.optimizer, self.scaler)
        return loss

    def warm_up(self, steps: int) -> None:
        """Real ``steps`` that nobody times, then everything as it was before them.

        They take the first allocation, the choice of kernels and DDP's bucket building out of the
        clock. One more, where a last batch of another size would else be the first of its size
        within it. Weights, buffers, optimizer and random state are put back, so that training
        starts from the seed's own weights. Raises Stopped.
        """
        initial = {name: value.detach().cpu().clone() for name, value in self.state().items()}
        rates = [group["lr"] for group in self.optimizer.param_groups]
        order = self.order(0)
        batches = [self.bounds[number % len(self.bounds)] for number in range(steps)]
        start, stop = self.bounds[-1]
        if batches and stop - start not in {end - begin for begin, end in batches}:
            batches.append((start, stop))
        for number, (start, stop) in enumerate(batches):
            self.step(order[start:stop], 0)
            self.pulse.beat("warm-up", 0, number)
            self.lookout.due("warm-up")
            if self.lookout.stop:
                raise Stopped
        with torch.no_grad():
            for name, value in self.state().items():
                value.copy_(initial[name])
        self.optimizer.state.clear()
        self.optimizer.zero_grad()
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self.scaler = grad_scaler(self.scaler.is_enabled())

    def state(self) -> dict[str, torch.Tensor]:
        """This rank's weights and buffers, by the names that the strategy gives them."""
        return dict(self.model.state_dict())

    def find_checkpoint(self, folder: Path, environment: dict) -> int | None:
        """The checkpoint in ``folder`` from which all ranks go on; None to start afresh.

        ``environment`` is that of measure.environment; later checkpoints go there, too.
        """
        self.machine = environment["machine"]["fingerprint"]
        self.store = checkpoint.Store(folder, checkpoint.key(self.cell, environment))
        found = self.store.find() if self.strategy.rank == 0 else None
        if found:
            self.kept = self.store.state(found)["kept"]
        return round(self.reduced([float(found or 0)], "sum")[0]) or None

    def agreed(self, found: int | None) -> int | None:
        """``found``, where the models that train at the same time have found a checkpoint, too.

        Else all start afresh: they would be at the same time for a part only. Raises Stopped.
        """
        mine = {"model": self.cell["model"]["name"], "found": found}
        told = self.meet("found", "start-up", mine)
        without = [each["model"] for each in told if each["found"] is None]
        if found is None or not without:
            return found
        if self.strategy.rank == 0 and self.store is not None:
            names = f"{' and '.join(without)}, trained at the same time"
            print(
                f"checkpoint: {mine['model']} starts afresh: there is none of {names}", flush=True
            )
            self.store.clear()
        self.kept = self.place.told()
        return None

    def begin(self, found: int | None = None) -> None:
        """Make all ready for the first step, or for the one after the checkpoint ``found``."""
        self.scheduler = SCHEDULES[self.training["schedule"]](
            self.optimizer,
            self.peak_rate,
            self.training["epochs"] * len(self.bounds),
        )
        # Dropout differs between ranks and repeats between runs.
        torch.manual_seed(self.cell["seed"] * 1_000_003 + self.strategy.rank)
        if found is not None:
            self._resume(found)
        measure.reset_peak_memory(self.strategy.devices)
        self.energy = measure.Energy(self.strategy.devices)
        self.lookout.wrote()
        self.meet("ready", "start-up")

    def meet(self, what: str, phase: str, mine: Any = None) -> list:
        """Wait until the models that train at the same time are at ``what``, too.

        Returns what each of them told there, ``mine`` among them. Raises Stopped, and
        DivergedBeside.
        """
        while (told := self.strategy.meet(what, mine)) is None:
            self.heed()
            self.pulse.beat(phase, self.place.epoch + 1, self.place.step)
            if self.lookout.due(phase) and self.scheduler is not None:  # before: nothing to keep
                self.write_checkpoint()
            if self.lookout.stop:
                raise Stopped
            time.sleep(MEET_SECONDS)
        return told

    def heed(self) -> None:
        """DivergedBeside where a model that trains at the same time has said that it did."""
        for each in self.strategy.heard("trained"):
            if each["trouble"] is not None:
                raise DivergedBeside(
                    f"{each['model']}, trained at the same time: {each['trouble']}"
                )

    def said(self, seconds: float | None, trouble: str | None = None) -> dict:
        """What the processes of other models hear of this one's end."""
        return {
            "model": self.cell["model"]["name"],
            "train_seconds": seconds,
            "trouble": trouble,
        }

    def end_together(self, seconds: float) -> None:
        """After the last step, the devices of all models are in use until all have done theirs.

        Raises DivergedBeside where another one did. What its devices use while it waits is no
        energy of this model.
        """
        joules = self.joules()
        told = self.meet("trained", "waiting", self.said(seconds))
        self.heed()
        self.beside = [each for n, each in enumerate(told) if n != self.strategy.companion]
        self._joules, self.energy = joules, measure.Energy(self.strategy.devices)

    def leave(self) -> None:
        """The first process goes last: it may keep what they meet by."""
        while self.strategy.meet("left") is None and not self.strategy.companion:
            self.pulse.beat("waiting", self.place.epoch + 1, self.place.step)
            time.sleep(MEET_SECONDS)

    def train(self, display: Display) -> None:
        """All epochs; ``history`` grows by an entry each.

        Diverged when the loss is not finite; Stopped when the launcher asked for the end.
        """
        epochs = self.training["epochs"]
        for epoch in range(self.place.epoch, epochs):
            loss, seconds = self.train_epoch(display)
            if not math.isfinite(loss):
                raise Diverged(f"the training loss became {loss} in epoch {epoch + 1} of {epochs}")
            self.heed()
            elapsed = seconds + (self.history[-1]["elapsed_seconds"] if self.history else 0.0)
            if epoch + 1 == epochs:
                self.end_together(elapsed)
            predictions, test_loss = self.evaluate()
            if test_loss is None:
                raise Diverged(f"the test loss is no number after epoch {epoch + 1} of {epochs}")
            accuracy = None
            if self.training["steps"] is not None:  # nothing has been learned to be tested
                test_loss = None
            else:
                accuracy = (predictions == self.data.test_labels.cpu()).double().mean().item()
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
            self.predictions = predictions
            self.place = checkpoint.Place(epoch + 1)
            display.epoch(self.history[-1], elapsed / (epoch + 1) * (epochs - epoch - 1))

    def train_epoch(self, display: Display) -> tuple[float, float]:
        """The epoch of ``place``, from there on: (mean loss over its samples, its seconds).

        Seconds are those of the slowest rank, between checkpoints: writing one is not training.
        """
        self.model.train()
        place = self.place
        order = self.order(place.epoch)
        while place.step < len(self.bounds):
            # Ranks start together: waiting for a late one is not training.
            self.strategy.reduce(torch.zeros(1, device=self.strategy.devices[0]))
            with measure.Stopwatch(self.strategy.devices) as watch, self.profile.phase("other"):
                due = self._train_until_due(order, display)
            slowest = self.reduced([watch.seconds], "max")[0]
            place.seconds += slowest
            self.profile.settle(watch.seconds, slowest)
            if due:
                self.write_checkpoint()
        total = self.reduced([place.loss], "sum")[0]
        return total / self.strategy.shares / self.samples, place.seconds

    def _train_until_due(self, order: torch.Tensor, display: Display) -> bool:
        """The epoch's steps until a checkpoint is due (True) or none is left."""
        place = self.place
        first, begun = self.bounds[place.step][0], time.perf_counter()
        total = torch.tensor(place.loss, device=self.strategy.devices[-1])
        due = False
        for start, stop in self.bounds[place.step :]:
            loss = self.step(order[start:stop], place.epoch)
            self._schedule()
            # The loss is a mean over the batch; the epoch's is one over its samples.
            total = total + loss * (stop - start)
            place.step += 1
            self.pulse.beat("training", place.epoch + 1, place.step)
            asked = display.wants_loss()
            speed = (stop - first) / (time.perf_counter() - begun)
            display.step(place.epoch + 1, loss.item() if asked else None, speed)
            due = self.lookout.due("training")
            if due:
                break
        place.loss = float(total)
        return due

    def _schedule(self) -> None:
        """Go on to the rate of the next step."""
        self.last_rate = self.optimizer.param_groups[0]["lr"]
        self.scheduler.step()

    @torch.no_grad()
    def evaluate(self) -> tuple[torch.Tensor, float | None]:
        """Predicted classes [N] (int64, CPU) and mean loss over the test set, on every rank.

        Each rank predicts its own share; nothing is padded, so that exactly N samples count: the
        whole test set or, with `steps`, its first batches, as many of each rank.
        A run that is stopped here evaluates again when it goes on.
        """
        self.strategy.broadcast_buffers(self.model)
        model = self.strategy.unwrap(self.model)
        model.eval()
        batch, device = self.training["evaluation_batch"], self.strategy.devices[0]
        number = len(self.data.test_labels)
        if self.training["steps"] is not None:
            number = min(number, self.training["steps"] * batch * self.strategy.shares)
        seconds = [0.0, 0.0]  # in all, and of the input
        predicted = torch.zeros(number, dtype=torch.int64, device=device)
        loss = torch.zeros(1, dtype=torch.float64, device=device)
        share = self.mine(torch.arange(number))
        # As often on every rank: they look up together, and some compute together. One whose share
        # is done joins with an image that does not count.
        firsts = range(0, math.ceil(number / self.strategy.shares), batch)
        parts = [share[first : first + batch] for first in firsts]
        if self.in_last_epoch and not self._evaluated:
            # The first allocation, the choice of kernels: of a whole batch and of the last one.
            for part in parts[:1] + parts[1:][-1:]:
                model(self.augment.test_batch(*_span(part))[0])
        self._evaluated = True
        for first, part in zip(firsts, parts, strict=True):
            start, stop = _span(part)
            devices = self.strategy.devices
            with self.profile.phase("inference"), measure.Stopwatch(devices) as whole:
                with measure.Stopwatch(devices) as watch:
                    images, labels = self.augment.test_batch(start, stop)
                logits = model(images)
            if len(part) > 0:
                seconds = [seconds[0] + whole.seconds, seconds[1] + watch.seconds]
            if len(part) > 0 and logits is not None:
                labels = labels.to(logits.device)
                logits = logits.float()
                loss += functional.cross_entropy(logits, labels, reduction="sum").to(device)
                predicted[start:stop] = logits.argmax(1).to(device)
            self.pulse.beat("evaluation", self.place.epoch + 1, first)
            if self.lookout.due("evaluation"):
                self.write_checkpoint()
        self.strategy.reduce(predicted)  # zeros elsewhere: the sum is everybody's predictions
        self.strategy.reduce(loss)
        total, of_input = self.reduced(seconds, "max")  # of the slowest rank
        self.inference = {"samples": number, "seconds": total, "input_seconds": of_input}
        mean = loss.item() / number
        return predicted.cpu(), mean if math.isfinite(mean) else None

    def exchanged(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of everybody's ``values``, in the middle of a step."""
        with self.profile.phase("exchange"):
            return self.strategy.reduce(values)

    def reduced(self, values: list[float], op: str) -> list[float]:
        """``values`` combined over ranks; ``op`` is sum or max."""
        device = self.strategy.devices[0]
        return self.strategy.reduce(
            torch.tensor(values, dtype=torch.float64, device=device), op
        ).tolist()

    def gathered(self, values: list[float]) -> list[list[float]]:
        """Everybody's ``values``, by rank; all ranks give as many."""
        table = [[0.0] * len(values) for _ in range(self.strategy.world_size)]
        table[self.strategy.rank] = values
        flat = self.reduced([value for row in table for value in row], "sum")
        width = len(values)
        return [flat[rank * width : (rank + 1) * width] for rank in range(len(table))]

    def joules(self) -> float | None:
        """Energy of all ranks, since the run began; None where any of it is not known."""
        mine = self.energy.joules()
        total, missing = self.reduced([mine or 0.0, float(mine is None)], "sum")
        return None if missing or self._joules is None else self._joules + total

    def _peaks(self) -> list[list[float]]:
        """Of each rank: peak memory of the process and of its accelerators, since the run began."""
        process, accelerators = measure.peak_memory_mib(self.strategy.devices)
        now = self.gathered([process, *accelerators])
        before = self._peak or now
        return [list(map(max, *rows)) for rows in zip(before, now, strict=True)]

    def peak_memory(self) -> dict:
        """Peak memory of every process and accelerator of the cell, in MiB."""
        rows = list(enumerate(self._peaks()))
        return {
            "processes": [{"rank": rank, "mib": row[0]} for rank, row in rows],
            # A rank's devices are numbered from its own: several ranks have one each.
            "devices": [
                {"device": f"cuda:{rank * (len(row) - 1) + index}", "rank": rank, "mib": mib}
                for rank, row in rows
                for index, mib in enumerate(row[1:])
            ],
        }

    # ------------------------------------------------------------ checkpoints

    def write_checkpoint(self) -> None:
        """Keep where training is, on rank 0's word; then Stopped when the launcher asked for it.

        Where every rank has a whole model, buffers and optimizer are rank 0's: its running
        statistics are those that count, and the optimizers of all ranks are alike.

        What accelerators hold for it (parts of the model that other ranks have) is not training's
        peak memory. A process's own peak cannot be forgotten, and counts it.
        """
        place = self.place
        self.pulse.beat("checkpoint", place.epoch + 1, place.step)
        self._peak = self._peaks()
        own = {
            "random": self.gathered([float(byte) for byte in self._random_state()]),
            "losses": self.gathered([place.loss]),
        }
        state = {
            "kept": place.told(),
            "machine": self.machine,
            "seconds": place.seconds,
            "history": self.history,
            "scaler": self.scaler.state_dict(),
            "joules": self.joules(),
            "peak": self._peak,
            "profile": self.profile.state(),
            "started": self.started,
            "resumed_from": self.resumed_from,
        }
        tensors = {f"model.{name}": value for name, value in self.state().items()}
        names = list(self.parameters)
        for index, values in self.optimizer.state_dict()["state"].items():
            for key, value in values.items():
                if isinstance(value, torch.Tensor):  # SGD without momentum has a None
                    tensors[f"optimizer.{key}.{names[index]}"] = value
        tensors = self.strategy.whole(tensors)
        if self.strategy.rank == 0 and self.store is not None:
            tensors["random"] = torch.tensor(own["random"], dtype=torch.uint8)
            # Not in JSON: a loss that is no number is found at the epoch's end, not here.
            tensors["losses"] = torch.tensor(own["losses"], dtype=torch.float64)
            number = place.epoch * len(self.bounds) + place.step
            try:
                self.store.write(number, tensors, state)
                self.kept = state["kept"]
            except OSError as error:  # a full disk ends no training
                print(
                    f"checkpoint: none could be written to {self.store.folder} ({error}); "
                    f"an interruption now goes on from {at(self.kept)}",
                    flush=True,
                )
        measure.reset_peak_memory(self.strategy.devices)
        self.lookout.wrote()
        if self.lookout.stop:
            raise Stopped

    def _resume(self, number: int) -> None:
        """Go on from the checkpoint ``number``: the same on every rank, or its part of it."""
        assert self.store is not None
        state, tensors = self.store.state(number), self.store.tensors(number)
        kept, rank = state["kept"], self.strategy.rank
        with torch.no_grad():
            for name, value in self.state().items():
                value.copy_(self.strategy.part(tensors[f"model.{name}"], value))
        kept_of: dict[str, dict] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, key, name = name.split(".", 2)
                kept_of.setdefault(name, {})[key] = value
        own = {
            index: {
                key: self.strategy.part(value, parameter) for key, value in kept_of[name].items()
            }
            for index, (name, parameter) in enumerate(self.parameters.items())
            if name in kept_of
        }
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": own, "param_groups": groups})
        # The schedule is a function of the steps that are done. torch warns of the order of calls.
        with warnings.catch_warnings(action="ignore"):
            for _ in range(number):
                self._schedule()
        self.scaler.load_state_dict(state["scaler"])
        self._set_random_state(tensors["random"][rank])
        loss = tensors["losses"][rank].item()
        self.place = checkpoint.Place(kept["epoch"] - 1, kept["step"], state["seconds"], loss)
        self.history, self.started = state["history"], state["started"]
        self._joules, self._peak = state["joules"], state["peak"]
        self.profile.resume(state["profile"])
        self.resumed_from = [*state["resumed_from"], {**kept, "machine": state["machine"]}]
        if self.strategy.leads:
            elsewhere = state["machine"] != self.machine
            aside = (
                " (of another machine: no speedup is told from these times)" if elsewhere else ""
            )
            print(f"checkpoint: goes on from {at(kept)}{aside}", flush=True)

    def _random_state(self) -> list[int]:
        """The random states of this process and its accelerators, as bytes."""
        states = [torch.get_rng_state()]
        states += [torch.cuda.get_rng_state(device) for device in self._accelerators()]
        return torch.cat(states).tolist()

    def _set_random_state(self, state: torch.Tensor) -> None:
        """The inverse of ``_random_state``: uint8 on the CPU."""
        size = len(torch.get_rng_state())
        torch.set_rng_state(state[:size].clone())
        accelerators = self._accelerators()
        if accelerators:
            parts = state[size:].chunk(len(accelerators))
            for device, part in zip(accelerators, parts, strict=True):
                torch.cuda.set_rng_state(part.clone(), device)

    def _accelerators(self) -> list[torch.device]:
        return [device for device in self.strategy.devices if device.type == "cuda"]


def _span(part: torch.Tensor) -> tuple[int, int]:
    """Where the neighbouring samples ``part`` begin and end; those of the first one for none."""
    return (int(part[0]), int(part[-1]) + 1) if len(part) > 0 else (0, 1)


def at(place: dict) -> str:
    """A checkpoint's place in words."""
    return f"epoch {place['epoch']}, step {place['step']}"


def be_deterministic() -> None:
    """Only algorithms that give the same bytes every time; an operator without one is an error."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # cuBLAS reads it when it starts
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def prepare(cell: dict) -> None:
    """Settings of the whole process."""
    if cell["hardware"]["device"] == "cpu":
        torch.set_num_threads(cell["hardware"]["threads"])
    torch.backends.cuda.matmul.allow_tf32 = cell["training"]["tf32"]
    torch.backends.cudnn.allow_tf32 = cell["training"]["tf32"]
    if cell["training"]["mode"] == "deterministic":
        be_deterministic()


def train(cell: dict, data_folder: Path, out: Path, strategy: Any, pulse: Pulse) -> None:
    """Set up, train, evaluate; rank 0 writes ``out``."""
    launched = float(os.environ.get("PARBENCH_LAUNCHED", time.time()))
    training = cell["training"]
    prepare(cell)
    pulse.beat("start-up")
    strategy.setup()
    processes = strategies.load(cell["strategy"]["name"]).processes(cell)
    cores = measure.pin(strategy.local_rank, processes)
    cell = strategy.cell  # from here on: a companion has another model than the cell
    run = Run(cell, data_folder, strategy, pulse)
    run.data.require_every_class()
    environment = measure.environment(
        cell,
        run.data.sha256,
        world_size=strategy.world_size,
        backend=strategy.backend,
        cores=_all_cores(run, cores),
    )
    found = run.find_checkpoint(checkpoint.folder(out, strategy.companion), environment)
    display = None
    reason = startup = None
    try:
        found = run.agreed(found)
        # DDP builds its buckets in the first step, for good: they are as they were.
        repeated = found or training["mode"] == "deterministic"
        run.warm_up(max(training["warmup_steps"], 1 if repeated else 0))
        run.begin(found)
        startup = run.reduced([time.time() - launched], "max")[0]
        display = Display(strategy.shows, training["epochs"], len(run.bounds), run.samples)
        with run.profile:
            run.train(display)
    except Diverged as error:  # every rank sees the same reduced loss, and stops here together
        reason = str(error)
        if not isinstance(error, DivergedBeside):  # that is told already
            strategy.meet("trained", run.said(None, reason))
    except Stopped:
        if strategy.leads:
            pulse.stopped(run.kept)
        run.leave()
        return
    finally:
        if display:
            display.close()

    joules = run.joules()
    run.leave()
    known = {
        "epoch_seconds": [entry["seconds"] for entry in run.history],
        "warmup_steps": training["warmup_steps"],
        "steps_per_epoch": len(run.bounds),
        "peak_memory_mib": run.peak_memory(),
        "startup_seconds": startup,
        "history": run.history,
        "environment": environment,
        "resumed_from": run.resumed_from or None,
        "profile": None if reason else run.profile.result(),
    }
    weights = strategy.whole(run.state())
    if not strategy.leads:
        return
    if reason is not None:
        measure.write_unfinished(out, cell, "diverged", reason, run.started, data_folder, **known)
        return
    seconds = sum(known["epoch_seconds"])
    scores = measure.NO_SCORES
    if training["steps"] is None:
        scores = measure.classification(
            run.data.test_labels.cpu().numpy(), run.predictions.numpy(), len(run.data.classes)
        )
    measure.write_metrics(
        out,
        {
            "cell": cell,
            "status": "ok",
            "reason": None,
            "train_seconds": seconds,
            "samples_per_second": run.samples * training["epochs"] / seconds,
            "energy_joules": joules,
            **scores,
            "inference": run.inference,
            "weights_sha256": measure.weights_sha256(weights),
            "beside": [
                {key: each[key] for key in ("model", "train_seconds")} for each in run.beside
            ],
            **known,
            "started": run.started,
            "finished": measure.now(),
        },
    )


def _all_cores(run: Run, own: list[int]) -> list[int]:
    """The cores of all ranks, in rank order."""
    if run.cell["hardware"]["device"] != "cpu":
        return []
    return [int(core) for row in run.gathered([float(core) for core in own]) for core in row]


def main() -> None:
    """The command line of one rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", type=Path, required=True, help="cell.json")
    parser.add_argument("--data", type=Path, required=True, help="folder of the converted dataset")
    parser.add_argument("--out", type=Path, required=True, help="metrics.json to write")
    arguments = parser.parse_args()
    cell = measure.read_cell(arguments.cell)
    strategy = strategies.load(cell["strategy"]["name"]).Strategy(cell)
    pulse = Pulse(int(os.environ.get("RANK", os.environ.get("HOROVOD_RANK", "0"))))
    try:
        train(cell, arguments.data, arguments.out, strategy, pulse)
        # The wrapped model goes before its process group (see strategies/ddp.py).
        gc.collect()
        strategy.close()
    except BaseException as error:
        pulse.last_words(error)
        raise


if __name__ == "__main__":
    run_main(main)
