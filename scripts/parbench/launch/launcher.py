"""Train one cell: lend it devices, start and watch its ranks, leave none behind, keep its result.

``--print`` shows its command, ready to be pasted.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from filelock import FileLock, Timeout

from parbench import cell as cells
from parbench import strategies
from parbench.cell import Cell
from parbench.deploy import images
from parbench.errors import ParbenchError
from parbench.launch import command, devices, outcome, ranks, slurm_job
from parbench.launch.outcome import Failure
from parbench.launch.slurm_job import Job
from parbench.measure import clocks, metrics_json
from parbench.measure.environment import host
from parbench.plan.remaining import Progress

# Somebody who insists asks again. What comes sooner is the same wish by another way: Ctrl-C reaches
# this process from the terminal and, a moment later, from Snakemake.
INSIST_SECONDS = 2.0
# Before the end of the walltime, beside the grace that ranks have: to end them, to ask Slurm.
MARGIN_SECONDS = 20.0
# In which Slurm ends a job that it was asked to run again.
REQUEUE_SECONDS = 60.0
WALLTIME = signal.SIGALRM  # this process sends it to itself


class Stopped(Exception):
    """This process was asked to end. ``number``: the signal, or WALLTIME."""

    def __init__(self, number: int, kept: str = ""):
        near = "stopped before the end of its walltime"
        plain = near if number == WALLTIME else f"ended by {outcome.signal_name(number)}"
        super().__init__(f"{plain}; {kept}" if kept else plain)
        self.number = number


class Stop:
    """The wish that this process ends: an exception while it waits, a note while ranks run."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.raises = True
        self._insisted = False
        self._since = 0.0

    def listen(self) -> None:
        """To signals, and to the end of the Snakemake that started this process."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, WALLTIME):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup, a shell's background job
                signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._since = number, time.monotonic()
            if self.raises:
                raise Stopped(number)
        elif number != WALLTIME and time.monotonic() - self._since > INSIST_SECONDS:
            self._insisted = True

    def wish(self) -> str | None:
        """What ranks.run asks for."""
        return None if self.received is None else "end" if self._insisted else "stop"


@dataclass
class Task:
    """One run of one cell, with the files it reads and writes."""

    cell: Cell
    cell_path: Path
    data: Path
    out: Path
    log: Path
    mode: str

    @property
    def folder(self) -> Path:
        """The cell's own."""
        return self.out.parent

    def again(self) -> str:
        """The command that runs it once more."""
        words = [sys.executable, command.shown_path(command.SCRIPTS / "launch.py")]
        words += ["--cell", str(self.cell_path), "--data", str(self.data)]
        return shlex.join([*words, "--out", str(self.out), "--log", str(self.log)])


def run(task: Task, job: Job | None, stop: Stop) -> int:
    """Train the cell: 0 when there is a result, also out_of_memory; 1 when the job failed.

    ``job``: the Slurm job of this process. Raises Stopped when a signal asked for the end.
    """
    name, folder = task.cell.id, task.folder
    progress = Progress(name, task.out)
    with _locked(task):
        outcome.failed(folder, "its job ended without a word", task.log)
        task.out.unlink(missing_ok=True)
        image = _image(task)  # before devices are taken: it may have to be built
        if outcome.take_finished(folder, task.out, task.cell, task.data, image):
            print(f"{progress.count()}{name}: an earlier run has trained it meanwhile", flush=True)
            return 0
        started, begun = clocks.now(), time.monotonic()
        failure = _train(task, job, stop, image, f"{progress.count()}{name}: starts on")
        seconds = time.monotonic() - begun
        if failure is not None and not failure.out_of_memory:
            _tell(task, failure.sentence)
            return 1
        if failure is not None:
            metrics_json.write_unfinished(
                task.out,
                task.cell,
                "out_of_memory",
                failure.sentence,
                started,
                task.data,
                image=image,
            )
        outcome.finished(folder, task.out, seconds)
        result = outcome.result(metrics_json.read(task.out))
        # Before another run of this cell may take the result away.
        print(f"{progress.count()}{name}: {result}{progress.left()}", flush=True)
    return 0


@contextlib.contextmanager
def _locked(task: Task) -> Iterator[None]:
    """Hold the cell's lock; says so where another run of it must be waited for."""
    lock = FileLock(task.folder / ".lock")
    with contextlib.suppress(Timeout):
        lock.acquire(blocking=False)
    if not lock.is_locked:
        print(f"{task.cell.id}: waiting for another run of this cell", file=sys.stderr, flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _image(task: Task) -> dict | None:
    """What the cell's image is, as images.ensure tells it; None for a cell of the host."""
    if task.cell.deployment == "host":
        return None
    _, settings = images.read_plan(task.out.absolute().parents[2] / "plan" / "images.json")
    return images.ensure(images.of_cell(task.cell, settings), settings)


def _train(
    task: Task, job: Job | None, stop: Stop, image: dict | None, starts: str
) -> Failure | None:
    """Run the ranks to their end; what went wrong. Raises Stopped where they were asked to end."""
    cell, begun = task.cell, time.monotonic()
    output = ranks.Output(task.log, task.mode == "bar")
    here = len(job.here) if job and cell.hardware.nodes > 1 else 1
    with contextlib.ExitStack() as stack:
        stack.callback(output.close)
        lent = stack.enter_context(devices.lent(cell, here))
        state = Path(stack.enter_context(_state(task)))
        where = ", ".join(job.nodes) if job and cell.hardware.nodes > 1 else None
        where = where or f"{cell.hardware.device} {', '.join(lent.devices)}"
        print(f"{starts} {where}", flush=True)
        stop.raises = False
        programs = _programs(task, job, image, lent, state)
        count = strategies.of(cell).ranks_per_node * cell.hardware.nodes
        settings = cell.run
        ended = ranks.run(
            programs,
            count,
            state,
            output,
            settings.timeout_seconds,
            settings.grace_seconds,
            stop.wish,
        )
        failure = outcome.why(ended, count, list(output.lines), cell.hardware.nodes)
        failure = failure or _check_metrics(task)
        if failure is not None:
            task.out.unlink(missing_ok=True)
            if stop.received is not None or ended.stopped is not None:
                # Slurm may have asked the ranks alone.
                number = stop.received or signal.SIGTERM
                seconds = time.monotonic() - begun
                kept = outcome.stopped(task.folder, ended.stopped, seconds)
                output.say(str(Stopped(number, kept)))
                raise Stopped(number, kept)
        return failure


def _state(task: Task) -> contextlib.AbstractContextManager[str]:
    """The run's own folder, which all of its ranks see; gone at its end."""
    home = None  # a node's /tmp is faster than the file system that nodes share
    if task.cell.hardware.nodes > 1:
        home = task.folder.absolute()
        for old in home.glob("parbench-*"):  # of a run that was killed: this one has the lock
            shutil.rmtree(old, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix="parbench-", dir=home, ignore_cleanup_errors=True)


def _programs(
    task: Task, job: Job | None, image: dict | None, lent: devices.Lent, state: Path
) -> dict[int, ranks.Program]:
    """What starts the ranks: this process itself or, within a job of Slurm, srun."""
    cell = task.cell
    variables = {
        "PARBENCH_STATE": str(state),
        "PARBENCH_STORE": str(state / "store"),
        "PARBENCH_LAUNCHED": repr(time.time()),
        "PARBENCH_PROGRESS": task.mode,
        "PARBENCH_HOST": json.dumps(host(image)),
    }
    if lent.shared:
        variables["PARBENCH_OVERSUBSCRIBED"] = "1"  # for metrics.json, whoever writes it
        os.environ["PARBENCH_OVERSUBSCRIBED"] = "1"
    if task.mode == "bar":  # it cannot ask the terminal: it draws into a pipe
        size = shutil.get_terminal_size()
        variables |= {"COLUMNS": str(size.columns), "LINES": str(size.lines)}
    if job and cell.hardware.nodes > 1:
        variables["PARBENCH_HEAD"] = job.address
    made = command.of_cell(
        cell,
        cell_path=task.cell_path,
        data=task.data,
        out=task.out,
        lent=lent,
        image=image and Path(image["path"]),
        variables=variables,
        state=state,
        temporary=state if cell.hardware.nodes == 1 else None,
    )
    environment = command.environment_of(made)
    per_node = strategies.of(cell).ranks_per_node
    if job is not None:
        return slurm_job.programs(job, cell, per_node, made, state, environment)
    return {
        rank: ranks.Program(made.words, {**environment, **made.of_rank(rank, per_node, per_node)})
        for rank in range(per_node)
    }


def _check_metrics(task: Task) -> Failure | None:
    """A run that ends well leaves metrics.json, of this very cell."""
    try:
        metrics = metrics_json.read(task.out)
    except ParbenchError as error:
        return Failure(f"training ended without an error, but {error}")
    if metrics["cell"] != task.cell.json():
        return Failure(f"training ended without an error, but {task.out} is of another cell")
    return None


def _tell(task: Task, sentence: str) -> None:
    """The last lines of a failed job, on the terminal and in the log."""
    lines = [
        f"error: {task.cell.id}: {sentence}",
        f"  log:   {task.log}",
        f"  again: {task.again()}",
    ]
    with contextlib.suppress(OSError), open(task.log, "a", encoding="utf-8") as log:
        print(*lines, sep="\n", file=log, flush=True)
    print(*lines, sep="\n", file=sys.stderr, flush=True)
    outcome.failed(task.folder, sentence, task.log)


# ---------------------------------------------------------------- the end of a job, or of Snakemake


def _watch(job: Job | None, grace: float) -> Callable[[], None]:
    """Sends this process a signal when its Snakemake is gone, or its walltime nearly over."""
    parent = os.environ.get("PARBENCH_PARENT")  # the process that ran the rule
    ends = job and job.ends

    def follow() -> None:
        nonlocal ends
        while parent is None or os.getppid() == int(parent):
            time.sleep(1.0)
            if job and ends and time.time() >= ends - grace - MARGIN_SECONDS:
                ends = slurm_job.ends(job)  # it may have been extended
                if ends and time.time() >= ends - grace - MARGIN_SECONDS:
                    os.kill(os.getpid(), WALLTIME)
                    ends = None
        os.kill(os.getpid(), signal.SIGTERM)

    return follow


def _stopped(task: Task, job: Job | None, stopped: Stopped, before: set) -> int:
    """What is said and done when the cell was asked to end; the exit status.

    ``before``: the checkpoints before this run.
    """
    if job and (stopped.number == WALLTIME or slurm_job.preempted(job)):
        why_not = None
        if not job.made_for.endswith(f"_{task.cell.id}"):  # more than this cell may run in it
            why_not = "it was not made for this cell; run the same command again"
        elif stopped.number == WALLTIME and not outcome.checkpoints(task.folder) - before:
            why_not = (
                "it got no further than a checkpoint before; give it more time: slurm.minutes in "
                "config.yaml"
            )
        why_not = why_not or slurm_job.requeue(job)
        if why_not is None:
            print(f"{task.cell.id}: {stopped}; Slurm runs job {job.number} again", file=sys.stderr)
            time.sleep(REQUEUE_SECONDS)  # what it exits with says nothing
        else:
            _tell(task, f"{stopped}; job {job.number} is not run again: {why_not}")
        return 1
    print(f"{task.cell.id}: {stopped}", file=sys.stderr)
    outcome.failed(task.folder, str(stopped), task.log, stopped=True)
    return 128 + stopped.number


# ---------------------------------------------------------------- the program


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", type=Path, required=True, help="cell.json")
    parser.add_argument("--data", type=Path, required=True, help="folder of the converted dataset")
    parser.add_argument("--out", type=Path, required=True, help="metrics.json to write")
    parser.add_argument("--log", type=Path, help="default: log.txt beside metrics.json")
    parser.add_argument("--progress", choices=("bar", "lines"), help="default: a bar on a terminal")
    parser.add_argument(
        "--print", action="store_true", help="show the command of the cell and run nothing"
    )
    arguments = parser.parse_args()
    cell = cells.read(arguments.cell)
    paths = {"cell_path": arguments.cell, "data": arguments.data, "out": arguments.out}
    if arguments.print:
        print(command.shown(cell, **paths))
        return 0
    quiet = os.environ.get("PARBENCH_QUIET") == "1" or not sys.stderr.isatty()
    mode = arguments.progress or ("lines" if quiet else "bar")
    task = Task(cell, log=arguments.log or arguments.out.with_name("log.txt"), mode=mode, **paths)
    job = slurm_job.current()
    _check_nodes(task, job)
    before = outcome.checkpoints(task.folder)
    stop = Stop()
    try:
        stop.listen()
        watch = _watch(job, cell.run.grace_seconds)
        threading.Thread(target=watch, daemon=True).start()
        return run(task, job, stop)
    except Stopped as stopped:
        stop.raises = False
        return _stopped(task, job, stopped, before)
    except ParbenchError as error:
        outcome.failed(task.folder, str(error), task.log)
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = error.filename or task.folder
        sentence = f"{where}: {error.strerror}; make room and run the cell again"
        outcome.failed(task.folder, sentence, task.log)
        raise ParbenchError(f"{cell.id}: {sentence}") from None


def _check_nodes(task: Task, job: Job | None) -> None:
    """ParbenchError when a cell needs more nodes than this process has."""
    wanted = task.cell.hardware.nodes
    if wanted > 1 and (job is None or len(job.nodes) != wanted):
        had = "no Slurm job" if job is None else f"job {job.number} of {len(job.nodes)} nodes"
        raise ParbenchError(
            f"{task.cell_path}: hardware.nodes is {wanted}, and this is {had}; run it with "
            "`snakemake --profile slurm`, which asks Slurm for them"
        )
