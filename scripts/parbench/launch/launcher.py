"""Train one cell: lock its devices, start and watch its ranks, write its result."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from parbench import cache, identity, strategies
from parbench import cell as cells
from parbench.cell import Pair
from parbench.data import saved_weights
from parbench.deploy import containers
from parbench.deploy.containers import BuiltImage
from parbench.errors import ParbenchError
from parbench.files import read_json, read_record
from parbench.launch import (
    cell_commands,
    devices,
    interleaving,
    outcome,
    ranks,
    slurm_cluster,
    slurm_job,
)
from parbench.launch.cell_commands import Task
from parbench.launch.interleaving import SideRanks
from parbench.launch.outcome import Failure
from parbench.launch.slurm_job import Job
from parbench.measure import clocks, metrics_json
from parbench.measure.environment import host
from parbench.training import checkpoint

if TYPE_CHECKING:
    from parbench.measure.metrics_types import PairRunJson, RunJson

Result = TypeVar("Result")

# Seconds needed before the end of the walltime, besides the ranks' grace period: to end the ranks
# and to ask Slurm for a requeue.
MARGIN_SECONDS = 20.0
REQUEUE_SECONDS = 60.0  # within which Slurm ends a job that it requeues
WALLTIME = signal.SIGALRM  # sent by the kernel shortly before the end of the walltime


class Interrupted(Exception):
    """Raised when a signal asks this process to stop.

    ``number``: of the signal, which may be WALLTIME; ``progress``: what is kept, for the message.
    """

    def __init__(self, number: int, progress: str = "it had not begun to train"):
        how = f"ended by {signal.Signals(number).name}"
        if number == WALLTIME:
            how = "stopped before the end of its walltime"
        super().__init__(f"{how}; {progress}")
        self.number = number


class Stop:
    """Requests to stop. They raise Interrupted; while ranks run, they are only recorded."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.raises = True

    def listen(self, job: Job | None, grace: float) -> None:
        """Listen for signals, for the end of the calling Snakemake and for the walltime."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, WALLTIME):
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup sets it
                signal.signal(number, self._receive)
        if job and job.ends:
            signal.alarm(max(1, int(job.ends - time.time() - grace - MARGIN_SECONDS)))
        if parent := os.environ.get("PARBENCH_PARENT"):  # the process that ran the rule
            threading.Thread(target=_end_with, args=(int(parent),), daemon=True).start()

    def requested(self) -> bool:
        """Return whether a signal arrived."""
        return self.received is not None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
            if self.raises:
                raise Interrupted(number)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


def run(task: Task, job: Job | None, stop: Stop) -> int:
    """Train the cell of ``task``; return 0 if there is a result (out_of_memory is one), else 1.

    ``job``: the Slurm job of this process. Raises Interrupted after a request to stop.
    """
    cell, folder = task.cell, task.folder
    retrain = task.out.exists()  # a caller that has a result wants a new one
    with cache.locked(folder / ".lock", f"the result of {cell.id}"):
        outcome.record_failure(folder, _silent(job), task.log)
        task.out.unlink(missing_ok=True)
        # Before the devices are locked, because missing images are built here.
        facts = containers.of_sides(cell, task.results / "plan" / "images.json")
        progress, _ = _progress(task)
        if not retrain and saved_weights.why_missing(cell, folder.parent) is None:
            labels = [None if image is None else image["label"] for image in facts]
            now = identity.current(cell, labels, task.data.absolute())
            if outcome.take_finished(folder, task.out, now):
                print(f"{progress}{cell.id}: another run has trained it meanwhile", flush=True)
                return 0
        started = clocks.now()
        failure = _train(task, job, stop, facts, f"{progress}{cell.id}: starts on")
        if failure is not None and failure.out_of_memory:
            reason = failure.sentence
            on_cpu = all(side.hardware.device == "cpu" for side in cell.sides)
            if job and job.memory_mib and on_cpu:
                reason += f"; its job had {job.memory_mib} MiB on each node"
            metrics_json.write_out_of_memory(task.out, cell, reason, started, task.data, facts)
        elif failure is not None:
            _report(task, failure.sentence)
            return 1
        result: RunJson | PairRunJson = read_json(task.out)
        if problem := _unusable(task, result):
            _report(task, f"{outcome.summary(result)}; {problem}")
            return 1
        outcome.record_result(task.out, result)
        progress, time_left = _progress(task)
        # Printed inside the lock: afterwards another run of this cell may delete the result.
        print(f"{progress}{cell.id}: {outcome.summary(result)}{time_left}", flush=True)
    return 0


def _unusable(task: Task, result: RunJson | PairRunJson) -> str | None:
    """Return why the ``result`` cannot be used, or None.

    It cannot if weights that other cells need were not kept, or if those that it starts from
    changed meanwhile.
    """
    then = outcome.identity_of(result).weights
    now = identity.weights_of(task.cell, task.data.absolute())
    why_missing = saved_weights.why_missing(task.cell, task.folder.parent)
    return why_missing or next(identity.changed_weights(then, now), None)


def _silent(job: Job | None) -> str:
    """Return the reason to record for a cell whose launcher is killed before it records one."""
    if job is None:
        return "its job has not reported how it ended"
    sentence = f"its job {job.number} has not reported how it ended; "
    sentence += f"`scontrol show job {job.number}` may say"
    if job.memory_mib:
        sentence += f" why: if it ran out of its {job.memory_mib} MiB, raise slurm.memory_mib"
    return sentence


def _progress(task: Task) -> tuple[str, str]:
    """Return "[12/30] " and " (about 02:10 left)" for the Snakemake run that trains this cell.

    The estimate rests on the time between the ends of cells, so that building images, for example,
    does not count. Both are empty for a cell that results/plan/progress.json, written by that run,
    does not list; the second is empty until two cells have ended.
    """
    path = task.results / "plan" / "progress.json"
    progress = read_record(path, "started", "cells") if path.exists() else {"cells": []}
    if task.cell.id not in progress["cells"]:
        return "", ""
    paths = (task.results / "cells" / name / "metrics.json" for name in progress["cells"])
    stamps = (path.stat().st_mtime for path in paths if path.exists())
    ends = sorted(stamp for stamp in stamps if stamp >= progress["started"])
    finished, total, time_left = len(ends), len(progress["cells"]), ""
    if 1 < finished < total:
        seconds = (ends[-1] - ends[0]) / (finished - 1) * (total - finished)
        time_left = f" (about {outcome.duration(seconds)} left)"
    return f"[{finished}/{total}] ", time_left


def _train(
    task: Task, job: Job | None, stop: Stop, facts: list[BuiltImage | None], starts: str
) -> Failure | None:
    """Run the ranks until they end; return what went wrong, or None. Raises Interrupted."""
    nodes, nodes_here, shared_folder = [], 1, None
    if job and task.nodes > 1:
        # Only for several nodes: a node's own /tmp is faster than the file system that they share.
        nodes, nodes_here, shared_folder = job.nodes, len(job.nodes_here), task.folder.absolute()
    with (
        devices.lock_devices(task.cell, nodes_here) as locked,
        tempfile.TemporaryDirectory(
            prefix="parbench-", dir=shared_folder, ignore_cleanup_errors=True
        ) as folder,
    ):
        print(f"{starts} {', '.join(nodes) or locked}", flush=True)
        stop.raises = False
        attempt = Attempt(task, job, stop, facts, locked, Path(folder))
        sides = attempt.pair(task.cell) if isinstance(task.cell, Pair) else attempt.alone()
        failure = attempt.failure(sides)
        if failure is None and task.out.exists():
            return None
        task.out.unlink(missing_ok=True)
        stopped = sides[0].stopped
        # Slurm may signal only the ranks, and delete a private /tmp of the job while they stop.
        preempted = failure is not None and job is not None and slurm_job.preempted(job)
        if stop.requested() or stopped or preempted:
            raise Interrupted(stop.received or signal.SIGTERM, _kept(task, stopped))
        return failure or Failure("training ended without an error, but without a result")


@dataclass(frozen=True)
class Attempt:
    """One attempt at ``task`` on the devices ``locked``.

    ``facts``: what each side's image contains, None on the host; ``folder``: one that all ranks
    see.
    """

    task: Task
    job: Job | None
    stop: Stop
    facts: list[BuiltImage | None]
    locked: devices.LockedDevices
    folder: Path

    def sides(self, name: str) -> list[SideRanks]:
        """Return the ranks of each side, not yet started, in the folders ``name``0, ``name``1..."""
        sides = []
        for number, (cell, image) in enumerate(zip(self.task.cell.sides, self.facts, strict=True)):
            state, nodes = self.folder / f"{name}{number}", cell.hardware.nodes
            state.mkdir(exist_ok=True)
            variables = {
                "PARBENCH_STATE": str(state),
                "PARBENCH_STORE": str(state / "store"),
                "PARBENCH_LAUNCHED": repr(time.time()),
                "PARBENCH_HOST": json.dumps(host(image)),
            }
            if self.job and nodes > 1:
                variables["PARBENCH_HEAD"] = self.job.address
            locked = self.locked.of(cell, min(nodes, len(self.job.nodes_here)) if self.job else 1)
            image_path = None if image is None else Path(image["path"])
            programs = cell_commands.programs(
                self.task, number, self.job, locked, image_path, state, variables
            )
            count = strategies.of(cell).ranks_per_node * nodes
            sides.append(SideRanks(programs, count, state, self.task.log))
        return sides

    def started(
        self, name: str, run: Callable[[list[SideRanks]], Result]
    ) -> tuple[list[SideRanks], Result]:
        """Make the sides as ``sides`` does, call ``run`` with them, and return both results.

        Tries again if srun could not start them because Slurm's controller did not answer.
        """
        patience = slurm_cluster.RetryTimer(slurm_cluster.JOB_SECONDS)
        while True:
            sides = self.sides(name)
            result = run(sides)
            refusals = (outcome.not_started(side) for side in sides)
            refusal = next(filter(None, refusals), "")
            if self.stop.requested() or not patience.waits(refusal):
                return sides, result

    def alone(self) -> list[SideRanks]:
        """Train a cell that is not a pair."""
        settings = self.task.cell.run
        timeout, grace = settings.timeout_seconds, settings.grace_seconds
        return self.started(
            "alone", lambda sides: ranks.run(sides[0], timeout, grace, self.stop.requested)
        )[0]

    def pair(self, pair: Pair) -> list[SideRanks]:
        """Measure the sides of ``pair`` in turn; in separate runs if memory cannot hold them all.

        Returns the sides of the last attempt.
        """
        task, started, reason = self.task, clocks.now(), None
        timeout, seconds = task.cell.run.timeout_seconds, interleaving.turn_seconds(pair)
        stop = self.stop.requested
        sides, slices = self.started(
            "together", lambda sides: interleaving.run(sides, seconds, timeout, stop)
        )
        failure = None if slices else self.failure(sides)
        if failure is not None and failure.out_of_memory:
            reason = f"each turn was a separate run, since together {failure.sentence}"
            print(
                f"{task.cell.id}: {failure.sentence}; each turn will be a separate run", flush=True
            )
            sides, slices = self.started(
                "apart",
                lambda sides: interleaving.run(sides, seconds, timeout, stop, restarting=True),
            )
        if slices:
            entries, rows = [side.json() for side in sides], [one.json() for one in slices]
            metrics_json.write_pair(
                task.out,
                pair,
                rows,
                entries,
                started,
                reason=reason,
                shared=self.job is not None and not self.job.alone,
            )
        return sides

    def failure(self, sides: list[SideRanks]) -> Failure | None:
        """Return what went wrong with the first side that failed; None if none did."""
        for cell, side in zip(self.task.cell.sides, sides, strict=True):
            failure = outcome.failure_of(side)
            if failure is not None:
                prefix = f"side {cell.id}: " if len(sides) > 1 else ""
                return replace(failure, sentence=f"{prefix}{failure.sentence}")
        return None


def _kept(task: Task, stopped: dict | None) -> str:
    """Return what an interrupted run kept, in words.

    ``stopped``: epoch and step at which it stopped, None if it did not stop in time.
    """
    ending = "is kept, and the same command goes on from there"
    if stopped is not None:
        return f"a checkpoint at epoch {stopped['epoch']} step {stopped['step']} {ending}"
    if checkpoint.written(checkpoint.folder(task.out)):
        return f"its last checkpoint {ending}"
    return "before its first checkpoint; the same command starts it again"


def _report(task: Task, sentence: str, failed: bool = True) -> None:
    """Print why there is no result, also into the log; record it if the cell ``failed``."""
    message = f"{task.cell.id}: {sentence}"
    if failed:
        message = f"error: {message}\n  log:   {task.log}\n  again: {task.typed()}"
    else:
        outcome.forget_failure(task.folder)
    with contextlib.suppress(OSError), open(task.log, "a", encoding="utf-8") as log:
        print(message, file=log)
    print(message, file=sys.stderr, flush=True)
    if failed:
        outcome.record_failure(task.folder, sentence, task.log)


def _interrupted(task: Task, job: Job | None, interrupted: Interrupted, begun: float) -> int:
    """Report the interruption, requeue the Slurm job if that helps, and return the exit status.

    ``begun``: time.time() at the start of this run.
    """
    if not (job and (interrupted.number == WALLTIME or slurm_job.preempted(job))):
        _report(task, str(interrupted), failed=False)
        return 128 + interrupted.number
    why_not = None
    checkpoints = checkpoint.written(checkpoint.folder(task.out))
    if job.cell != task.cell.id:  # other cells may run in this job, too
        why_not = "it was not made for this cell; run the same command again"
    elif interrupted.number == WALLTIME and all(
        path.stat().st_mtime < begun for path in checkpoints
    ):
        why_not = (
            "it got no further than a checkpoint before; give it more time: slurm.minutes in "
            "config.yaml"
        )
    if why_not is None:
        # Printed before asking: Slurm may end this process before its answer arrives.
        message = f"{task.cell.id}: {interrupted}; asks Slurm to run job {job.number} again"
        print(message, file=sys.stderr, flush=True)
        why_not = slurm_job.requeue(job)
    if why_not is not None:
        _report(task, f"{interrupted}; job {job.number} is not run again: {why_not}")
        return 1
    time.sleep(REQUEUE_SECONDS)  # Slurm ends this process; if it exited, Slurm would not requeue
    return 1


# ---------------------------------------------------------------- the program


def launch(cell_path: Path, data: Path, out: Path, log: Path) -> int:
    """Train the cell in ``cell_path`` on the dataset in ``data``; return the status of its job.

    Its metrics.json is ``out``. Raises ParbenchError.
    """
    task = Task(cells.read(cell_path), cell_path, data, out, log)
    job, stop, begun = slurm_job.current(), Stop(), time.time()
    if task.nodes > 1 and (job is None or len(job.nodes) != task.nodes):
        actual = "no Slurm job" if job is None else f"job {job.number} of {len(job.nodes)} nodes"
        raise ParbenchError(
            f"{task.cell_path}: hardware.nodes is {task.nodes}, and this is {actual}; run it with "
            "`snakemake --profile slurm`, which asks Slurm for them"
        )
    try:
        stop.listen(job, task.cell.run.grace_seconds)
        return run(task, job, stop)
    except Interrupted as interrupted:
        stop.raises = False
        return _interrupted(task, job, interrupted, begun)
    except ParbenchError as error:
        outcome.record_failure(task.folder, str(error), task.log)
        raise
