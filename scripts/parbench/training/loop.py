"""The training loop of one rank, common to all strategies: warm-up, epochs, and the clock."""

from __future__ import annotations

import math

import torch

from parbench.measure import clocks
from parbench.training import checkpoint, compiling, evaluation, progress, snapshot
from parbench.training.companions import Companions
from parbench.training.endings import Diverged, Stopped
from parbench.training.optimizers import grad_scaler, schedule
from parbench.training.run import Run


def warm_up(run: Run, steps: int) -> None:
    """Take ``steps`` real training steps while nothing is timed, then undo their effects.

    This keeps first allocations, the choice of kernels and DDP's bucket building out of the timed
    steps. If the last batch of an epoch has another size, one more step warms up that size.
    Weights, buffers, optimizer and loss scaler are restored, so that training starts from the
    seed's weights. Raises Stopped.
    """
    whole_state = run.strategy.full_tensors(run.state())
    initial = {name: value.detach().cpu().clone() for name, value in whole_state.items()}
    rates = [group["lr"] for group in run.optimizer.param_groups]
    order = run.order(0)
    if run.training.compile != "none":
        passes = [*run.passes(run.bounds), *evaluation.passes(run)]
        run.extra["compile_seconds"] = compiling.compile_all(run, passes)
    batches = [run.bounds[number % len(run.bounds)] for number in range(steps)]
    start, stop = run.bounds[-1]
    if batches and stop - start not in {end - begin for begin, end in batches}:
        batches.append((start, stop))
    for number, (start, stop) in enumerate(batches):
        run.train_once(order[start:stop])
        run.heartbeat.beat("warm-up", 0, number)
        run.checkpoint_timer.due("warm-up")
        if run.checkpoint_timer.stop:
            raise Stopped
    run.strategy.load(run.model, initial)
    # Zeroed, not deleted: libraries hold references to parts of the state.
    for state in run.optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.zero_()
    run.optimizer.zero_grad()
    for group, rate in zip(run.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    run.scaler = grad_scaler(run.scaler.is_enabled())


def begin(run: Run, found: int | None = None) -> None:
    """Prepare for the first step, or for the one after the checkpoint ``found``."""
    run.scheduler = schedule(run.optimizer, run.training, run.peak_rate, len(run.bounds))
    # So that dropout differs between ranks and repeats between runs.
    torch.manual_seed(run.cell.seed * 1_000_003 + run.strategy.rank)
    if found is not None:
        snapshot.resume(run, found)
    run.checkpoint_timer.restart()


def train(run: Run, companions: Companions) -> None:
    """Train all epochs.

    Raises Diverged if a loss is not finite, and Stopped if the launcher asks for it.
    """
    epochs = run.training.epochs
    for epoch in range(run.place.epoch, epochs):
        loss, seconds = train_epoch(run)
        if not math.isfinite(loss):
            raise Diverged(f"the training loss became {loss} in epoch {epoch + 1} of {epochs}")
        companions.check()
        elapsed = seconds + (run.history[-1]["elapsed_seconds"] if run.history else 0.0)
        if epoch + 1 == epochs:
            companions.end_together(elapsed)
        run.predictions, test_loss = evaluation.evaluate(run)
        if test_loss is None:
            raise Diverged(f"the test loss is not a number after epoch {epoch + 1} of {epochs}")
        accuracy = None
        if run.training.steps is not None:  # a few steps learn nothing worth testing
            test_loss = None
        else:
            correct = run.predictions == run.data.test_labels.cpu()
            accuracy = correct.double().mean().item()
        run.history.append(
            {
                "epoch": epoch + 1,
                "train_loss": loss,
                "learning_rate": run.last_rate,
                "seconds": seconds,
                "elapsed_seconds": elapsed,
                "samples_per_second": run.samples / seconds,
                "test_accuracy": accuracy,
                "test_loss": test_loss,
            }
        )
        run.place = checkpoint.Place(epoch + 1)
        if run.strategy.prints_progress:
            seconds_left = elapsed / (epoch + 1) * (epochs - epoch - 1)
            print(progress.line(run.history[-1], epochs, seconds_left), flush=True)


def train_epoch(run: Run) -> tuple[float, float]:
    """Train the rest of the epoch of ``place``; return its mean loss and its seconds.

    The seconds are those of the slowest rank, without the writing of checkpoints.
    """
    run.model.train()
    place, strategy = run.place, run.strategy
    order = run.order(place.epoch)
    while place.step < len(run.bounds):
        with run.meters.timed():
            # A barrier, since waiting for a late rank is not training time.
            strategy.reduce(torch.zeros(1, device=strategy.devices[0]))
            with clocks.Stopwatch(strategy.devices) as watch, run.profile.phase("other"):
                due = _train_until_due(run, order)
        slowest = strategy.reduced([watch.seconds], "max")[0]
        place.seconds += slowest
        run.profile.add_stretch(watch.seconds, slowest)
        if due:
            snapshot.write(run)
    run.meters.hold(*run.held_tensors())
    total = strategy.reduced([place.loss], "sum")[0]
    return total / strategy.data_parallel_size / run.samples, place.seconds


def _train_until_due(run: Run, order: torch.Tensor) -> bool:
    """Take steps until a checkpoint is due (return True) or the epoch ends (return False)."""
    place = run.place
    total = torch.tensor(place.loss, device=run.strategy.devices[-1])
    due = False
    bounds = run.bounds[place.step :]
    for batch, epoch in run.ahead((order[start:stop], place.epoch) for start, stop in bounds):
        loss = run.step(batch, epoch)
        run.next_rate()
        # A step's loss is the mean over its batch; the epoch's loss is the mean over its samples.
        total.add_(loss, alpha=len(batch))
        place.step += 1
        run.beat("training")
        due = run.checkpoint_timer.due("training")
        if due:
            break
    place.loss = float(total)
    return due
