"""Train one cell, or predict with it, as one of its ranks: read cell.json, write metrics.json."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from parbench.cell import Cell
from parbench.cell import read as read_cell
from parbench.data import disk_input, saved_weights, tokens
from parbench.measure import flops, metrics_json, scores
from parbench.strategies._base import Strategy
from parbench.strategies._stages import DTYPES
from parbench.training import checkpoint, launched, loop
from parbench.training.companions import Companions, EndMessage
from parbench.training.endings import CompanionDiverged, Diverged, Stopped
from parbench.training.infer import infer
from parbench.training.progress import Heartbeat, is_out_of_memory
from parbench.training.run import Run
from parbench.training.set_up import rank_of, set_up

if TYPE_CHECKING:
    from parbench.measure.metrics_types import BesideJson, MeasuredValues, TokensJson


def train(
    cell: Cell, data_folder: Path, out: Path, strategy: Strategy, heartbeat: Heartbeat
) -> None:
    """Train and evaluate ``cell`` as one of its ranks; rank 0 writes ``out``."""
    launch_time = float(os.environ.get("PARBENCH_LAUNCHED", time.time()))
    run, environment = set_up(cell, data_folder, strategy, heartbeat)
    companions = Companions(run)
    cell = run.cell  # differs for a companion, which has its own model
    resume_from = run.find_checkpoint(checkpoint.folder(out, strategy.companion), environment)
    try:
        startup, reason = _train_epochs(run, companions, resume_from, launch_time)
    except Stopped:
        if strategy.leads:
            heartbeat.stopped(run.kept)
        return
    joules, throttled = run.meters.totals()
    run.extra |= _waited(run) | ({} if throttled is None else {"throttled_seconds": throttled})
    metrics: MeasuredValues = {
        "epoch_seconds": [entry["seconds"] for entry in run.history],
        "steps_per_epoch": len(run.bounds),
        "peak_memory_mib": run.meters.peak_memory(),
        "startup_seconds": startup,
        "history": run.history,
        "resumed_from": run.resumed_from or None,
        "profile": None if reason else run.profile.result(),
    }
    weights = strategy.full_tensors(run.state())
    if not strategy.leads:
        return
    extra = None
    if reason is None:
        digest, others = metrics_json.weights_sha256(weights), companions.others
        metrics = {**metrics, **_result(run, others, joules), "weights_sha256": digest}
        extra = ({} if others else _arithmetic(run)) | run.extra
        if cell.run.keeps_weights:
            saved_weights.keep(weights, digest, out.parent)
    metrics_json.write_run(
        out,
        cell,
        "ok" if reason is None else "diverged",
        reason,
        run.started,
        data_folder,
        environment=environment,
        extra=extra,
        **metrics,
    )


def _train_epochs(
    run: Run, companions: Companions, found: int | None, launch_time: float
) -> tuple[float | None, str | None]:
    """Warm up and train, starting from the checkpoint ``found`` if there is one.

    Returns the seconds from ``launch_time`` to the first step, and why the training diverged or
    None. Raises Stopped.
    """
    training, startup = run.training, None
    try:
        # DDP chooses its buckets in the first step. To repeat a run exactly after an interruption,
        # that step must be the warm-up's, as in the interrupted process.
        repeated = found or training.mode == "deterministic"
        loop.warm_up(run, max(training.warmup_steps, 1 if repeated else 0))
        loop.begin(run, found)
        companions.wait_for_all("ready", "start-up")
        startup = run.strategy.reduced([time.time() - launch_time], "max")[0]
        with run.profile:
            loop.train(run, companions)
    except Diverged as error:  # on all ranks at once, as they share the reduced loss
        if not isinstance(error, CompanionDiverged):  # the companion itself has announced it
            run.strategy.exchange_messages("trained", companions.end_message(None, str(error)))
        return startup, str(error)
    return startup, None


def _result(run: Run, others: list[EndMessage], joules: float | None) -> MeasuredValues:
    """Return the results of a completed training for metrics.json.

    ``others``: the results of the models that trained beside it.
    """
    seconds = sum(entry["seconds"] for entry in run.history)
    test_scores = scores.NO_SCORES
    if run.training.steps is None:
        labels = run.data.test_labels.cpu().numpy()
        test_scores = scores.classification(labels, run.predictions.numpy(), len(run.data.classes))
    return {
        "train_seconds": seconds,
        "samples_per_second": run.samples * run.training.epochs / seconds,
        "energy_joules": joules,
        **test_scores,
        "inference": run.inference,
        **_tokens(run, seconds),
        "beside": [_beside(other) for other in others],
    }


def _beside(other: EndMessage) -> BesideJson:
    assert other["train_seconds"] is not None  # None only if it diverged, which ends all trainings
    return {"model": other["model"], "train_seconds": other["train_seconds"]}


def _arithmetic(run: Run) -> dict[str, float]:
    """Return the numbers from which `mfu` is computed; none for texts, whose lengths differ.

    Must not be called while other models train, since it would slow them down.
    """
    if run.data.vocabulary is not None:
        return {}
    try:
        best = flops.best_rate(run.strategy.devices[0], DTYPES[run.training.precision])
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return {}  # out of memory beside the model, whose training is done
    counted = flops.per_sample(run.build, run.training.image_size)
    return {"flops_per_sample": counted, "best_flops_per_second": best}


def _waited(run: Run) -> dict[str, float]:
    """Return the seconds that steps waited for images from disk, on the rank that waited longest.

    Empty if images are in memory, or if an earlier process took some of the steps.
    """
    if run.training.input != "disk" or run.resumed_from:
        return {}
    own = run.input.waited if isinstance(run.input, disk_input.DiskInput) else 0.0
    return {"disk_wait_seconds": run.strategy.reduced([own], "max")[0]}


def _tokens(run: Run, seconds: float) -> MeasuredValues:
    """Return token counts of a training on texts, which took ``seconds``; empty for images."""
    if run.data.train_lengths is None:
        return {}
    training, ranks = run.training, run.strategy.data_parallel_size
    assert training.max_length is not None
    shares = (
        micro_batch
        for epoch in range(training.epochs)
        for order in [run.order(epoch)]
        for start, stop in run.bounds
        for share in order[start:stop].tensor_split(ranks)
        for micro_batch in share.tensor_split(training.gradient_accumulation)
    )
    token_count, place_count = tokens.counted(
        run.data.train_lengths, shares, training.padding == "longest", training.max_length
    )
    counts: TokensJson = {
        "number": token_count,
        "padding": 1 - token_count / place_count,
        "per_second": token_count / seconds,
    }
    return {"tokens": counts}


def run_rank(cell_path: Path, data: Path, out: Path) -> None:
    """Run one rank of the cell in ``cell_path`` on the dataset in ``data``; rank 0 writes ``out``,
    a metrics.json."""
    launched.begin()
    cell = read_cell(cell_path)
    assert isinstance(cell, Cell)  # pair_rank trains pairs
    work = train if cell.trained_by is None else infer
    with rank_of(cell) as (strategy, heartbeat):
        work(cell, data, out, strategy, heartbeat)
