"""Train one cell: lend it devices, watch its ranks, leave none behind, keep its result."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

from parbench import cache, strategies
from parbench import cell as cells
from parbench.data import kept
from parbench.deploy import images
from parbench.errors import ParbenchError
from parbench.files import read_json
from parbench.launch import command, devices, outcome, ranks, slurm_job, turns
from parbench.launch.command import Task
from parbench.launch.outcome import Failure
from parbench.launch.slurm_job import Job
from parbench.launch.turns import Side
from parbench.measure import clocks, metrics_json
from parbench.measure.environment import host
from parbench.training import checkpoint

# Before the end of the walltime, beside the grace that ranks have: to end them, to ask Slurm.
MARGIN_SECONDS = 20.0
# In which Slurm ends a job that it was asked to run again.
REQUEUE_SECONDS = 60.0
WALLTIME = signal.SIGALRM  # this process has the kernel send it


class Interrupted(Exception):
    """This process was asked to end. ``number``: the signal, or WALLTIME."""

    def __init__(self, number: int, kept: str = "it had not begun to train"):
        how = f"ended by {signal.Signals(number).name}"
        if number == WALLTIME:
            how = "stopped before the end of its walltime"
        super().__init__(f"{how}; {kept}")
        self.number = number


class Stop:
    """The wish that this process ends: an exception while it waits, a note while ranks run."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.raises = True

    def listen(self, job: Job | None, grace: float) -> None:
        """To signals, to the end of the Snakemake that started this process, to the walltime."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, WALLTIME):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup, a shell's background job
                signal.signal(number, self._receive)
        if job and job.ends:
            signal.alarm(max(1, int(job.ends - time.time() - grace - MARGIN_SECONDS)))
        if parent := os.environ.get("PARBENCH_PARENT"):  # the process that ran the rule
            threading.Thread(target=_end_with, args=(int(parent),), daemon=True).start()

    def asked(self) -> bool:
        """Whether it is wished."""
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
    """Train the cell: 0 when there is a result, also out_of_memory; 1 when the job failed.

    ``job``: the Slurm job of this process. Raises Interrupted when a signal asked for the end.
    """
    cell, folder = task.cell, task.folder
    anew = task.out.exists()  # somebody wants it trained who has its result
    with cache.locked(folder / ".lock", f"the result of {cell.id}"):
        outcome.failed(folder, "its job ended without a word", task.log)
        task.out.unlink(missing_ok=True)
        # Before devices are taken: they may have to be built.
        held = images.of_sides(cell, task.out.absolute().parents[2] / "plan" / "images.json")
        count, _ = _progress(task)
        if not anew and outcome.take_finished(folder, task.out, cell, task.data, held):
            print(f"{count}{cell.id}: an earlier run has trained it meanwhile", flush=True)
            return 0
        started = clocks.now()
        failure = _train(task, job, stop, held, f"{count}{cell.id}: starts on", started)
        if failure is not None and failure.out_of_memory:
            why = failure.sentence
            metrics_json.write_out_of_memory(task.out, cell, why, started, task.data, held)
        elif failure is not None:
            _tell(task, failure.sentence)
            return 1
        result = read_json(task.out)
        if lacking := kept.changed(cell, result, folder.parent):  # it diverged
            _tell(task, f"{outcome.result(result)}; {lacking}")
            return 1
        outcome.finished(task.out, result)
        count, left = _progress(task)
        # Before another run of this cell may take the result away.
        print(f"{count}{cell.id}: {outcome.result(result)}{left}", flush=True)
    return 0


def _progress(task: Task) -> tuple[str, str]:
    """ "[12/30] " and " (about 02:10 left)" of the workflow's run that this cell belongs to.

    results/plan/progress.json has its cells and its start; for other cells both are empty.
    """
    results = task.out.absolute().parents[2]
    path = results / "plan" / "progress.json"
    told = read_json(path) if path.exists() else {"cells": []}
    if task.cell.id not in told["cells"]:
        return "", ""
    paths = (results / "cells" / name / "metrics.json" for name in told["cells"])
    done = sum(path.exists() and path.stat().st_mtime >= told["started"] for path in paths)
    every = len(told["cells"])
    seconds = (time.time() - told["started"]) * (every - done) / max(1, done)  # as those before
    left = f" (about {outcome.spelled(seconds)} left)" if done < every else ""
    return f"[{done}/{every}] ", left


def _train(
    task: Task, job: Job | None, stop: Stop, held: list[dict | None], starts: str, started: str
) -> Failure | None:
    """Run the ranks to their end; what went wrong. Raises Interrupted where they were asked to."""
    nodes, here, home = [], 1, None
    if job and task.nodes > 1:
        # A node's /tmp is faster than the file system that nodes share.
        nodes, here, home = job.nodes, len(job.here), task.folder.absolute()
    with (
        devices.lent(task.cell, here) as lent,
        # The run's own folder, which all of its ranks see.
        tempfile.TemporaryDirectory(prefix="parbench-", dir=home, ignore_cleanup_errors=True) as it,
    ):
        print(f"{starts} {', '.join(nodes) or lent}", flush=True)
        stop.raises = False
        run = task.cell.run

        def made(name: str) -> list[Side]:
            return _sides(task, job, held, lent, Path(it) / name)

        if len(task.cell.sides) > 1:
            sides = _take_turns(task, stop, started, made)
        else:
            sides = made("alone")
            ranks.run(sides[0], run.timeout_seconds, run.grace_seconds, stop.asked)
        failure = _failure(task, sides)
        if failure is None and task.out.exists():
            return None
        task.out.unlink(missing_ok=True)
        stopped = sides[0].stopped
        if stop.asked() or stopped:  # Slurm may ask ranks alone
            raise Interrupted(stop.received or signal.SIGTERM, _kept(task, stopped))
        return failure or Failure("training ended without an error, and without a result")


def _sides(
    task: Task, job: Job | None, held: list[dict | None], lent: devices.Lent, folder: Path
) -> list[Side]:
    """The ranks of each side of the cell, which have not started; theirs are ``folder``0, 1, ..."""
    sides = []
    for number, (cell, image) in enumerate(zip(task.cell.sides, held, strict=True)):
        state, nodes = Path(f"{folder}{number}"), cell.hardware.nodes
        state.mkdir()
        variables = {
            "PARBENCH_STATE": str(state),
            "PARBENCH_STORE": str(state / "store"),
            "PARBENCH_LAUNCHED": repr(time.time()),
            "PARBENCH_HOST": json.dumps(host(image)),
        }
        if job and nodes > 1:
            variables["PARBENCH_HEAD"] = job.address
        own = lent.of(cell, min(nodes, len(job.here)) if job else 1)
        path = image and Path(image["path"])
        programs = command.programs(task, number, job, own, path, state, variables)
        sides.append(Side(programs, strategies.of(cell).ranks_per_node * nodes, state, task.log))
    return sides


def _take_turns(
    task: Task, stop: Stop, started: str, made: Callable[[str], list[Side]]
) -> list[Side]:
    """Let the sides take turns; those that memory does not hold together, in runs apart.

    ``made`` makes them, in folders of this name. Returns those that were last.
    """
    seconds, reason = task.cell.run.timeout_seconds, None
    sides = made("together")
    slices = turns.run(sides, seconds, stop.asked)
    failure = None if slices else _failure(task, sides)
    if failure is not None and failure.out_of_memory:
        reason = f"each turn was a run of its own, since together {failure.sentence}"
        print(f"{task.cell.id}: {failure.sentence}: now each turn is a run of its own", flush=True)
        sides = made("apart")
        slices = turns.run(sides, seconds, stop.asked, apart=True)
    if slices:
        each, told = [side.told() for side in sides], [one.told() for one in slices]
        metrics_json.write_pair(task.out, task.cell, told, each, started, reason=reason)
    return sides


def _failure(task: Task, sides: list[Side]) -> Failure | None:
    """What went wrong on the first side on which anything did."""
    for cell, side in zip(task.cell.sides, sides, strict=True):
        failure = outcome.why(side, cell.hardware.nodes)
        if failure is not None:
            of = f"side {cell.id}: " if len(sides) > 1 else ""
            return replace(failure, sentence=f"{of}{failure.sentence}")
    return None


def _kept(task: Task, stopped: dict | None) -> str:
    """What a run that was asked to end has left, in words; ``stopped``: where it did in time."""
    going = "is kept, and the same command goes on from there"
    if stopped is not None:
        return f"a checkpoint at epoch {stopped['epoch']} step {stopped['step']} {going}"
    if checkpoint.written(checkpoint.folder(task.out)):
        return f"its last checkpoint {going}"
    return "before its first checkpoint; the same command starts it anew"


def _tell(task: Task, sentence: str, failed: bool = True) -> None:
    """Say why there is no result, on the terminal and in the log, and leave it for the report if it
    ``failed``."""
    lines = f"{task.cell.id}: {sentence}"
    if failed:
        lines = f"error: {lines}\n  log:   {task.log}\n  again: {task.typed()}"
    else:
        outcome.forget_failure(task.folder)
    with contextlib.suppress(OSError), open(task.log, "a", encoding="utf-8") as log:
        print(lines, file=log)
    print(lines, file=sys.stderr, flush=True)
    if failed:
        outcome.failed(task.folder, sentence, task.log)


def _interrupted(task: Task, job: Job | None, interrupted: Interrupted, begun: float) -> int:
    """What is said and done when the cell was asked to end; the exit status.

    ``begun``: time.time() when this run began.
    """
    if not (job and (interrupted.number == WALLTIME or slurm_job.preempted(job))):
        _tell(task, str(interrupted), failed=False)
        return 128 + interrupted.number
    why_not = None
    checkpoints = checkpoint.written(checkpoint.folder(task.out))
    if not job.made_for.endswith(f"_{task.cell.id}"):  # more than this cell may run in it
        why_not = "it was not made for this cell; run the same command again"
    elif all(path.stat().st_mtime < begun for path in checkpoints):
        why_not = (
            "it got no further than a checkpoint before; give it more time: slurm.minutes in "
            "config.yaml"
        )
    why_not = why_not or slurm_job.requeue(job)
    if why_not is not None:
        _tell(task, f"{interrupted}; job {job.number} is not run again: {why_not}")
        return 1
    print(f"{task.cell.id}: {interrupted}; Slurm runs job {job.number} again", file=sys.stderr)
    time.sleep(REQUEUE_SECONDS)  # what it exits with says nothing
    return 1


# ---------------------------------------------------------------- the program


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", type=Path, required=True, help="cell.json")
    parser.add_argument("--data", type=Path, required=True, help="folder of the converted dataset")
    parser.add_argument("--out", type=Path, required=True, help="metrics.json to write")
    parser.add_argument("--log", type=Path, help="default: log.txt beside metrics.json")
    given = parser.parse_args()
    log = given.log or given.out.with_name("log.txt")
    task = Task(cells.read(given.cell), given.cell, given.data, given.out, log)
    job, stop, begun = slurm_job.current(), Stop(), time.time()
    if task.nodes > 1 and (job is None or len(job.nodes) != task.nodes):
        had = "no Slurm job" if job is None else f"job {job.number} of {len(job.nodes)} nodes"
        raise ParbenchError(
            f"{task.cell_path}: hardware.nodes is {task.nodes}, and this is {had}; run it with "
            "`snakemake --profile slurm`, which asks Slurm for them"
        )
    try:
        stop.listen(job, task.cell.run.grace_seconds)
        return run(task, job, stop)
    except Interrupted as interrupted:
        stop.raises = False
        return _interrupted(task, job, interrupted, begun)
    except ParbenchError as error:
        outcome.failed(task.folder, str(error), task.log)
        raise
