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
    name, folder = task.cell.id, task.folder
    anew = task.out.exists()  # somebody wants it trained who has its result
    with cache.locked(folder / ".lock", f"the result of {name}"):
        outcome.failed(folder, "its job ended without a word", task.log)
        task.out.unlink(missing_ok=True)
        held = _images(task)  # before devices are taken: they may have to be built
        count, _ = _progress(task)
        if not anew and outcome.take_finished(folder, task.out, task.cell, task.data, held):
            print(f"{count}{name}: an earlier run has trained it meanwhile", flush=True)
            return 0
        started = clocks.now()
        failure = _train(task, job, stop, held, f"{count}{name}: starts on", started)
        if failure is not None:
            if not failure.out_of_memory:
                _tell_failure(task, failure.sentence)
                return 1
            metrics_json.write_out_of_memory(
                task.out, task.cell, failure.sentence, started, task.data, held
            )
        result = read_json(task.out)
        if lacking := kept.changed(task.cell, result, folder.parent):  # it diverged
            _tell_failure(task, f"{outcome.result(result)}; {lacking}")
            return 1
        outcome.finished(folder, task.out)
        count, left = _progress(task)
        # Before another run of this cell may take the result away.
        print(f"{count}{name}: {outcome.result(result)}{left}", flush=True)
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


def _images(task: Task) -> list[dict | None]:
    """What the image of each side is, as images.ensure tells it; None for one of the host."""
    if task.cell.deployment == "host":
        return [None] * len(task.cell.sides)
    _, settings = images.read_plan(task.out.absolute().parents[2] / "plan" / "images.json")
    wanted = [images.of_cell(side, settings) for side in task.cell.sides]
    return [images.ensure(image, settings) for image in wanted]


def _train(
    task: Task,
    job: Job | None,
    stop: Stop,
    held: list[dict | None],
    starts: str,
    started: str,
) -> Failure | None:
    """Run the ranks to their end; what went wrong. Raises Interrupted where they were asked to."""
    run, several = task.cell.run, _nodes(task) > 1
    # A node's /tmp is faster than the file system that nodes share.
    home = task.folder.absolute() if several else None
    with (
        devices.lent(task.cell, len(job.here) if job and several else 1) as lent,
        # The run's own folder, which all of its ranks see.
        tempfile.TemporaryDirectory(prefix="parbench-", dir=home, ignore_cleanup_errors=True) as it,
    ):
        nodes = job.nodes if job and several else []
        print(f"{starts} {', '.join(nodes) or lent}", flush=True)
        stop.raises = False

        def made(prefix: str = "") -> list[turns.Side]:
            return [
                _side(task, number, job, image, lent, Path(it) / f"{prefix}{number}")
                for number, image in enumerate(held)
            ]

        def asked() -> bool:
            return stop.received is not None

        sides = made()
        if len(sides) > 1:
            sides = _take_turns(task, sides, made, asked, started)
        else:
            (one,) = sides
            one.ended = ranks.run(
                one.programs,
                one.count,
                one.state,
                task.log,
                run.timeout_seconds,
                run.grace_seconds,
                asked,
            )
        failure = _failure(task, sides)
        if failure is None and task.out.exists():
            return None
        task.out.unlink(missing_ok=True)
        ended = sides[0].ended
        if stop.received is not None or ended.stopped is not None:  # Slurm may ask ranks alone
            kept = outcome.kept(task.out, ended.stopped)
            raise Interrupted(stop.received or signal.SIGTERM, kept)
        return failure or Failure("training ended without an error, and without a result")


def _take_turns(
    task: Task,
    sides: list[turns.Side],
    made: Callable[[str], list[turns.Side]],
    asked: Callable[[], bool],
    started: str,
) -> list[turns.Side]:
    """Let the sides take turns; those that memory does not hold together, in runs apart.

    Returns those that did; ``made`` makes them anew, in folders with a prefix.
    """
    seconds, reason = task.cell.run.timeout_seconds, None
    slices = turns.run(sides, task.log, seconds, asked)
    failure = None if slices else _failure(task, sides)
    if failure is not None and failure.out_of_memory:
        reason = f"each turn was a run of its own, since together {failure.sentence}"
        print(f"{task.cell.id}: {failure.sentence}: now each turn is a run of its own", flush=True)
        sides = made("apart-")
        slices = turns.run(sides, task.log, seconds, asked, apart=True)
    if slices:
        each = [side.told() for side in sides]
        told = [one.told() for one in slices]
        metrics_json.write_pair(task.out, task.cell, told, each, started, reason=reason)
    return sides


def _failure(task: Task, sides: list[turns.Side]) -> Failure | None:
    """What went wrong on the first side on which anything did."""
    for cell, side in zip(task.cell.sides, sides, strict=True):
        failure = outcome.why(side.ended, side.count, task.log, cell.hardware.nodes)
        if failure is not None:
            of = f"side {cell.id}: " if len(sides) > 1 else ""
            return replace(failure, sentence=f"{of}{failure.sentence}")
    return None


def _nodes(task: Task) -> int:
    return max(side.hardware.nodes for side in task.cell.sides)


def _side(
    task: Task, number: int, job: Job | None, image: dict | None, lent: devices.Lent, state: Path
) -> turns.Side:
    """A side of the cell, and what starts its ranks: this process itself or, within a job of Slurm,
    srun."""
    cell = task.cell.sides[number]
    state.mkdir()
    variables = {
        "PARBENCH_STATE": str(state),
        "PARBENCH_STORE": str(state / "store"),
        "PARBENCH_LAUNCHED": repr(time.time()),
        "PARBENCH_HOST": json.dumps(host(image)),
    }
    if job and cell.hardware.nodes > 1:
        variables["PARBENCH_HEAD"] = job.address
    here = min(cell.hardware.nodes, len(job.here)) if job else 1
    of_side = lent.of(cell, here)
    made = command.of_side(task, number, of_side, image and Path(image["path"]), state, variables)
    per_node = strategies.of(cell).ranks_per_node
    if job is not None:
        programs = slurm_job.programs(job, cell, per_node, made, state)
    else:
        programs = {
            rank: ranks.Program(
                made.words, {**made.environment, **made.of_rank(rank, per_node, per_node)}
            )
            for rank in range(per_node)
        }
    return turns.Side(programs, per_node * cell.hardware.nodes, state)


def _tell(task: Task, *lines: str) -> None:
    """Say why there is no result, on the terminal and in the log."""
    with contextlib.suppress(OSError), open(task.log, "a", encoding="utf-8") as log:
        print(*lines, sep="\n", file=log)
    print(*lines, sep="\n", file=sys.stderr, flush=True)


def _tell_failure(task: Task, sentence: str) -> None:
    _tell(
        task,
        f"error: {task.cell.id}: {sentence}",
        f"  log:   {task.log}",
        f"  again: {task.typed()}",
    )
    outcome.failed(task.folder, sentence, task.log)


def _interrupted(task: Task, job: Job | None, interrupted: Interrupted, begun: float) -> int:
    """What is said and done when the cell was asked to end; the exit status.

    ``begun``: time.time() when this run began.
    """
    if not (job and (interrupted.number == WALLTIME or slurm_job.preempted(job))):
        _tell(task, f"{task.cell.id}: {interrupted}")
        outcome.forget_failure(task.folder)
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
        _tell_failure(task, f"{interrupted}; job {job.number} is not run again: {why_not}")
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
    _check_nodes(task, job)
    try:
        stop.listen(job, task.cell.run.grace_seconds)
        return run(task, job, stop)
    except Interrupted as interrupted:
        stop.raises = False
        return _interrupted(task, job, interrupted, begun)
    except ParbenchError as error:
        outcome.failed(task.folder, str(error), task.log)
        raise


def _check_nodes(task: Task, job: Job | None) -> None:
    """ParbenchError when a cell needs more nodes than this process has."""
    wanted = _nodes(task)
    if wanted > 1 and (job is None or len(job.nodes) != wanted):
        had = "no Slurm job" if job is None else f"job {job.number} of {len(job.nodes)} nodes"
        raise ParbenchError(
            f"{task.cell_path}: hardware.nodes is {wanted}, and this is {had}; run it with "
            "`snakemake --profile slurm`, which asks Slurm for them"
        )
