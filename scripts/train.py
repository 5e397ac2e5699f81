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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

import loader
import measure
import models
import strategies
from errors import run_main
from progress import Display, Pulse

if TYPE_CHECKING:
    from torch import nn

OPTIMIZERS = {
    "sgd": lambda parameters, t: torch.optim.SGD(
        parameters, t["learning_rate"], momentum=t["momentum"], weight_decay=t["weight_decay"]
    ),
    "adamw": lambda parameters, t: torch.optim.AdamW(
        parameters, t["learning_rate"], weight_decay=t["weight_decay"]
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
EVALUATION_BATCH = 256


def grad_scaler(enabled: bool) -> torch.amp.GradScaler:
    """The loss scaler that fp16 needs; one that does nothing for other precisions."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cuda", enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)  # torch < 2.3


class Diverged(Exception):
    """The loss is no longer a number."""


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
        self.augment = loader.Augment(
            self.data, cell["seed"], self.training["image_size"], self.training["augment"]
        )
        self.samples = len(self.data.train_labels)
        self.bounds = loader.batches(
            self.samples, self.training["global_batch"], self.training["min_tail"]
        )

        # The same initial weights for every strategy: drawn on the CPU, before any wrapping.
        torch.manual_seed(cell["seed"])
        model_name, options = cell["model"]["name"], cell["model"]["options"]
        blocks = models.load(model_name).build(
            len(self.data.classes), self.training["image_size"], options
        )
        self.model: nn.Module = strategy.wrap(blocks)
        self.optimizer = strategy.optimizer(
            OPTIMIZERS[self.training["optimizer"]](self.model.parameters(), self.training),
            self.model,
        )
        self.scaler = grad_scaler(self.training["precision"] == "fp16")
        self.scheduler: Any = None
        self.history: list[dict] = []

    def loss(self, batch: torch.Tensor, epoch: int) -> torch.Tensor:
        """Loss of this rank's share of the global ``batch`` (sample indices [B], on the CPU).

        The sum over the rank's samples times world size over B: averaged over ranks, as data
        parallelism does, that is the mean over the global batch, also for an uneven tail.
        """
        world_size = self.strategy.world_size
        share = batch.tensor_split(world_size)[self.strategy.rank]
        weight = world_size / len(batch)
        if len(share) == 0:  # a rank without samples still joins, with gradients of zero
            share, weight = batch[:2], 0.0
        images, labels = self.augment.train_batch(share, epoch)
        logits = self.model(images).float()
        labels = labels.to(logits.device, non_blocking=True)
        smoothing = self.training["label_smoothing"]
        total = functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
        return total * weight

    def step(self, batch: torch.Tensor, epoch: int) -> torch.Tensor:
        """One optimizer step on the global ``batch``; returns this rank's loss, detached."""
        self.optimizer.zero_grad()
        loss = self.loss(batch, epoch)
        self.scaler.scale(loss).backward()
        self.strategy.step(self.optimizer, self.scaler)
        return loss.detach()

    def warm_up(self) -> None:
        """Real steps that nobody times, then everything as it was before them.

        They take the first allocation, the choice of kernels and DDP's bucket building out of the
        clock. Weights, buffers, optimizer and random state are put back, so that training starts
        from the seed's own weights.
        """
        initial = {name: value.detach().cpu().clone() for name, value in self._state().items()}
        rates = [group["lr"] for group in self.optimizer.param_groups]
        order = loader.order(self.cell["seed"], 0, self.samples)
        for number in range(self.training["warmup_steps"]):
            start, stop = self.bounds[number % len(self.bounds)]
            self.step(order[start:stop], 0)
            self.pulse.beat("warm-up", 0, number)
        with torch.no_grad():
            for name, value in self._state().items():
                value.copy_(initial[name])
        self.optimizer.state.clear()
        self.optimizer.zero_grad()
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self.scaler = grad_scaler(self.scaler.is_enabled())
        measure.reset_peak_memory(self.strategy.devices)

    def _state(self) -> dict[str, torch.Tensor]:
        return dict(self.model.state_dict())

    def train(self, display: Display) -> None:
        """All epochs; ``history`` grows by an entry each. Diverged when the loss is not finite."""
        epochs = self.training["epochs"]
        self.scheduler = SCHEDULES[self.training["schedule"]](
            self.optimizer, self.training["learning_rate"], epochs * len(self.bounds)
        )
        # Dropout differs between ranks and repeats between runs.
        torch.manual_seed(self.cell["seed"] * 1_000_003 + self.strategy.rank)
        elapsed = 0.0
        for epoch in range(epochs):
            loss, seconds = self.train_epoch(epoch, display)
            if not math.isfinite(loss):
                raise Diverged(f"the training loss became {loss} in epoch {epoch + 1} of {epochs}")
            elapsed += seconds
            rate = self.scheduler.get_last_lr()[0]
            predictions, test_loss = self.evaluate(epoch)
            if test_loss is None:
                raise Diverged(f"the test loss is no number after epoch {epoch + 1} of {epochs}")
            accuracy = (predictions == self.data.test_labels.cpu()).double().mean().item()
            self.history.append(
                {
                    "epoch": epoch + 1,
                    "train_loss": loss,
                    "learning_rate": rate,
                    "seconds": seconds,
                    "elapsed_seconds": elapsed,
                    "samples_per_second": self.samples / seconds,
                    "test_accuracy": accuracy,
                    "test_loss": test_loss,
                }
            )
            self.predictions = predictions
            display.epoch(self.history[-1], elapsed / (epoch + 1) * (epochs - epoch - 1))

    def train_epoch(self, epoch: int, display: Display) -> tuple[float, float]:
        """One epoch: (mean loss over its samples, seconds of the slowest rank)."""
        self.model.train()
        order = loader.order(self.cell["seed"], epoch, self.samples)
        total: torch.Tensor | float = 0.0
        # Ranks start together: waiting for a late one is not training.
        self.strategy.reduce(torch.zeros(1, device=self.strategy.devices[0]))
        with measure.Stopwatch(self.strategy.devices) as watch:
            begun = time.perf_counter()
            for number, (start, stop) in enumerate(self.bounds):
                loss = self.step(order[start:stop], epoch)
                self.scheduler.step()
                # The loss is a mean over the batch; the epoch's is one over its samples.
                total = total + loss * (stop - start)
                self.pulse.beat("training", epoch + 1, number + 1)
                asked = display.wants_loss()
                speed = stop / (time.perf_counter() - begun)
                display.step(epoch + 1, loss.item() if asked else None, speed)
        sums = self.reduced([float(total)], "sum")
        slowest = self.reduced([watch.seconds], "max")
        return sums[0] / self.strategy.world_size / self.samples, slowest[0]

    @torch.no_grad()
    def evaluate(self, epoch: int) -> tuple[torch.Tensor, float | None]:
        """Predicted classes [N] (int64, CPU) and mean loss over the whole test set, on every rank.

        Each rank predicts its own part; nothing is padded, so that exactly N samples count.
        """
        self.strategy.broadcast_buffers(self.model)
        model = self.strategy.unwrap(self.model)
        model.eval()
        number = len(self.data.test_labels)
        device = self.strategy.devices[0]
        predicted = torch.zeros(number, dtype=torch.int64, device=device)
        loss = torch.zeros(1, dtype=torch.float64, device=device)
        edges = torch.arange(number).tensor_split(self.strategy.world_size)[self.strategy.rank]
        for part in edges.split(EVALUATION_BATCH):
            if len(part) == 0:
                continue
            start, stop = int(part[0]), int(part[-1]) + 1
            images, labels = self.augment.test_batch(start, stop)
            logits = model(images).float()
            labels = labels.to(logits.device)
            loss += functional.cross_entropy(logits, labels, reduction="sum").to(device)
            predicted[start:stop] = logits.argmax(1).to(device)
            self.pulse.beat("evaluation", epoch + 1, start)
        self.strategy.reduce(predicted)  # zeros elsewhere: the sum is everybody's predictions
        self.strategy.reduce(loss)
        mean = loss.item() / number
        return predicted.cpu(), mean if math.isfinite(mean) else None

    def reduced(self, values: list[float], op: str) -> list[float]:
        """``values`` combined over ranks; ``op`` is sum or max."""
        device = self.strategy.devices[0]
        return self.strategy.reduce(
            torch.tensor(values, dtype=torch.float64, device=device), op
        ).tolist()

    def total_or_none(self, value: float | None) -> float | None:
        """The sum of ``value`` over ranks; None where any rank has none."""
        total, missing = self.reduced([value or 0.0, float(value is None)], "sum")
        return None if missing else total

    def peak_memory(self) -> dict:
        """Peak memory of every process and accelerator of the cell, in MiB."""
        process, accelerators = measure.peak_memory_mib(self.strategy.devices)
        rank, world_size = self.strategy.rank, self.strategy.world_size
        table = [[0.0] * (1 + len(accelerators)) for _ in range(world_size)]
        table[rank] = [process, *accelerators]
        flat = self.reduced([value for row in table for value in row], "sum")
        width = 1 + len(accelerators)
        rows = [flat[start : start + width] for start in range(0, len(flat), width)]
        # A rank's devices are numbered from its own: several ranks have one each.
        first = [rank * len(accelerators) for rank in range(world_size)]
        return {
            "processes": [{"rank": rank, "mib": row[0]} for rank, row in enumerate(rows)],
            "devices": [
                {"device": f"cuda:{first[rank] + index}", "rank": rank, "mib": mib}
                for rank, row in enumerate(rows)
                for index, mib in enumerate(row[1:])
            ],
        }


def train(cell: dict, data_folder: Path, out: Path, strategy: Any, pulse: Pulse) -> None:
    """Set up, train, evaluate; rank 0 writes ``out``."""
    launched = float(os.environ.get("PARBENCH_LAUNCHED", time.time()))
    started = measure.now()
    training = cell["training"]
    if cell["hardware"]["device"] == "cpu":
        torch.set_num_threads(1)  # a device on a CPU is one core
    torch.backends.cuda.matmul.allow_tf32 = training["tf32"]
    torch.backends.cudnn.allow_tf32 = training["tf32"]

    pulse.beat("start-up")
    strategy.setup()
    module = strategies.load(cell["strategy"]["name"])
    cores = measure.pin(strategy.local_rank, module.processes(cell))
    run = Run(cell, data_folder, strategy, pulse)
    run.warm_up()
    energy = measure.Energy(strategy.devices)
    startup = run.reduced([time.time() - launched], "max")[0]

    display = Display(strategy.rank == 0, training["epochs"], len(run.bounds), run.samples)
    reason = None
    try:
        run.train(display)
    except Diverged as error:  # every rank sees the same reduced loss, and stops here together
        reason = str(error)
    display.close()

    joules = run.total_or_none(energy.joules())
    known = {
        "epoch_seconds": [entry["seconds"] for entry in run.history],
        "warmup_steps": training["warmup_steps"],
        "steps_per_epoch": len(run.bounds),
        "peak_memory_mib": run.peak_memory(),
        "startup_seconds": startup,
        "history": run.history,
        "environment": measure.environment(
            cell,
            run.data.sha256,
            world_size=strategy.world_size,
            backend=strategy.backend,
            cores=_all_cores(run, cores),
        ),
    }
    if strategy.rank != 0:
        return
    if reason is not None:
        measure.write_unfinished(out, cell, "diverged", reason, started, data_folder, **known)
        return
    seconds = sum(known["epoch_seconds"])
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
            **known,
            "started": started,
            "finished": measure.now(),
            "resumed_from": None,
        },
    )


def _all_cores(run: Run, own: list[int]) -> list[int]:
    """The cores of all ranks, in rank order."""
    if run.cell["hardware"]["device"] != "cpu":
        return []
    mine = [0.0] * (run.strategy.world_size * len(own))
    start = run.strategy.rank * len(own)
    mine[start : start + len(own)] = [float(core) for core in own]
    return [int(core) for core in run.reduced(mine, "sum")]


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
