"""Train one cell: lend it devices, watch its processes, leave none behind, keep its result.

``--print`` shows its command, ready to be pasted.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import across
import claim
import ear
import images
import job
import measure
import part
import record
from command import shown_command, shown_path
from errors import ParbenchError, run_main
from output import Output, progress_mode
from remaining import Progress
from stopping import WALLTIME, Stop, Stopped
from watch import Failure

# Before the end of the walltime, beside the grace that ranks have: to end them, to ask Slurm.
MARGIN_SECONDS = 20.0
# In which Slurm ends a job that it was asked to run again.
REQUEUE_SECONDS = 120.0


@dataclass
class Task:
    """One run of one cell, with the files it reads and writes."""

    cell: dict
    cell_path: Path
    data: Path
    out: Path
    log: Path
    mode: str

    def again(self) -> str:
        """The command that runs it once more."""
        words = [sys.executable, shown_path(Path(__file__))]
        for name in ("cell", "data", "out", "log"):
            value = getattr(self, "cell_path" if name == "cell" else name)
            words += [f"--{name}", str(value)]
        return shlex.join(words)


def run(task: Task, own: job.Job | None, stop: Stop) -> int:
    """Train the cell: 0 when there is a result, also out_of_memory; 1 when the job failed.

    ``own``: the Slurm job of this process. Raises Stopped when a signal asked for the end.
    """
    name, folder = task.cell["id"], task.out.parent
    progress = Progress(name, task.out)
    with claim.claimed(folder, name, own, stop):
        record.started(folder)
        task.out.unlink(missing_ok=True)
        image, settings = _image(task)  # before devices are taken: it may have to be built
        taken = record.take_over(folder, task.out, task.cell, task.data, image)
        if taken is not None:
            print(f"{progress.count()}{name}: {taken} has trained it meanwhile", flush=True)
            return 0
        started, begun = measure.now(), time.monotonic()
        output = Output(task.log, task.mode == "bar")
        try:
            ended = _train(task, own, stop, output, image, settings, progress)
            failure = ended.failure("\n".join(output.lines)) or _check_metrics(task)
            if failure is not None:
                task.out.unlink(missing_ok=True)
            if failure is not None and stop.received is not None:
                kept = record.stopped(folder, ended.stopped, time.monotonic() - begun)
                sentence = f"{Stopped(stop.received)}; {kept}"
                output.say(sentence)
                raise Stopped(stop.received, sentence)
        finally:
            output.close()
        if failure is not None:
            if not failure.out_of_memory:
                _tell(task, failure.sentence, own)
                return 1
            measure.write_unfinished(
                task.out,
                task.cell,
                "out_of_memory",
                failure.sentence,
                started,
                task.data,
                image=image,
            )
        record.finished(folder, task.out, time.monotonic() - begun, own and own.number)
        # Before another run of this cell may take the result away.
        print(f"{progress.count()}{name}: {_result(task.out)}{progress.left()}", flush=True)
    return 0


def _image(task: Task) -> tuple[dict | None, dict]:
    """What the cell's image is, as images.ensure tells it, and the settings of images; None for a
    cell of the host."""
    if task.cell["deployment"] == "host":
        return None, {}
    _, settings = images.read_plan(task.out.absolute().parents[2] / "plan" / "images.json")
    return images.ensure(images.of_cell(task.cell, settings), settings), settings


def _train(
    task: Task,
    own: job.Job | None,
    stop: Stop,
    output: Output,
    image: dict | None,
    settings: dict,
    progress: Progress,
) -> part.Ended:
    """Run the processes on this node, or on all nodes of the job, to their end."""
    starts = f"{progress.count()}{task.cell['id']}: starts on"
    paths = (task.cell, task.cell_path, task.data, task.out, task.mode)
    if task.cell["hardware"]["nodes"] > 1:
        assert own is not None
        # Another one when Slurm runs the job again: the first may not be quite dead.
        again = f".{own.restarts}" if own.restarts else ""
        state = task.out.absolute().parent / f"state-{own.number}{again}"
        print(f"{starts} {', '.join(own.nodes)}", flush=True)
        return across.Head(part.Part(*paths, state), own, output, stop, settings).run()

    def asked() -> str | None:
        return None if stop.received is None else "end" if stop.insisted else "stop"

    with part.borrow(task.cell) as held:
        print(f"{starts} {task.cell['hardware']['device']} {', '.join(held.devices)}", flush=True)
        state = Path(tempfile.mkdtemp(prefix="parbench-"))
        stop.raises = False
        try:
            return part.train(part.Part(*paths, state, image), held, output, asked)
        finally:
            shutil.rmtree(state, ignore_errors=True)


def _check_metrics(task: Task) -> Failure | None:
    """A run that ends well leaves metrics.json, of this very cell."""
    try:
        metrics = measure.read_metrics(task.out)
    except ParbenchError as error:
        return Failure(f"training ended without an error, but {error}")
    if metrics["cell"] != task.cell:
        return Failure(f"training ended without an error, but {task.out} is of another cell")
    return None


def _result(out: Path) -> str:
    """The result of a cell in a few words."""
    return record.result(measure.read_metrics(out))


def _tell(task: Task, sentence: str, own: job.Job | None) -> None:
    """The last lines of a failed job, on the terminal and in the log."""
    lines = [
        f"error: {task.cell['id']}: {sentence}",
        f"  log:   {task.log}",
        f"  again: {task.again()}",
    ]
    with open(task.log, "a", encoding="utf-8") as log:
        for stream in (sys.stderr, log):
            print(*lines, sep="\n", file=stream, flush=True)
    record.failed(task.out.parent, sentence, task.log, own and own.number)


def _near_end(own: job.Job, stop: Stop, grace: float) -> Callable[[], None]:
    """Asks ``stop``, when it is called in time for a checkpoint before Slurm ends the job."""
    ends = own.ends

    def look() -> None:
        nonlocal ends
        if ends is None or time.time() < ends - grace - MARGIN_SECONDS:
            return
        ends = job.ends(own.number) or ends  # it may have been extended
        if time.time() >= ends - grace - MARGIN_SECONDS:
            ends = None
            stop.ask(WALLTIME)

    return look


def _why_not_again(task: Task, own: job.Job, stopped: Stopped, before: set) -> str | None:
    """Have Slurm run this job again, which then goes on; None, or why that is not done.

    ``before``: the checkpoints before this run. Only a job that was made for this cell: in another
    one more than this cell may run.
    """
    folder = task.out.parent
    if not own.made_for.endswith(f"_{task.cell['id']}"):
        return "it was not made for this cell; run the same command again"
    if stopped.number == WALLTIME and not record.checkpoints(folder) - before:
        return (
            "it got no further than a checkpoint before; give it more time: slurm.minutes in "
            "config.yaml"
        )
    # Before Slurm ends this process, too.
    record.failed(folder, str(stopped), task.log, own.number, again=True)
    return job.requeue(own.number)


def _stopped(task: Task, own: job.Job | None, stopped: Stopped, before: set) -> int:
    """What is said and done when the cell was asked to end; the exit status."""
    name = task.cell["id"]
    if own and (stopped.number == WALLTIME or job.preempted(own.number)):
        why_not = _why_not_again(task, own, stopped, before)
        if why_not is None:
            print(f"{name}: {stopped}; Slurm runs job {own.number} again", file=sys.stderr)
            _wait_for_slurm()
        else:
            _tell(task, f"{stopped}; job {own.number} is not run again: {why_not}", own)
        return 1
    print(f"{name}: {stopped}", file=sys.stderr)
    record.failed(task.out.parent, str(stopped), task.log, own and own.number)
    return 128 + stopped.number


def _wait_for_slurm() -> None:
    """Wait until Slurm ends this process: what it exits with says nothing.

    Not longer than who started it, which may hear the signal alone: Slurm drains a node whose job
    does not end.
    """
    parent, deadline = os.getppid(), time.monotonic() + REQUEUE_SECONDS
    while os.getppid() == parent and time.monotonic() < deadline:
        time.sleep(0.1)


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
    cell = measure.read_cell(arguments.cell)
    if arguments.print:
        paths = {"cell_path": arguments.cell, "data": arguments.data, "out": arguments.out}
        print(shown_command(cell, **paths))
        return 0
    log = arguments.log or arguments.out.with_name("log.txt")
    mode = progress_mode(arguments.progress)
    task = Task(cell, arguments.cell, arguments.data, arguments.out, log, mode)
    own = job.current()
    _check_nodes(task, own)
    before = record.checkpoints(task.out.parent)
    number = own and own.number
    try:
        with Stop() as stop, contextlib.ExitStack() as stack:
            if own is not None:
                look = _near_end(own, stop, cell["run"]["grace_seconds"])
                stack.enter_context(stop.every(1.0, look))
                if len(own.nodes) == 1:  # of several, their agents are told
                    stack.enter_context(ear.listening(own, stop))
            return run(task, own, stop)
    except Stopped as stopped:
        return _stopped(task, own, stopped, before)
    except ParbenchError as error:
        record.failed(task.out.parent, str(error), task.log, number)
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = error.filename or task.out.parent
        sentence = f"{where}: {error.strerror}; make room and run the cell again"
        record.failed(task.out.parent, sentence, task.log, number)
        raise ParbenchError(f"{cell['id']}: {sentence}") from None


def _check_nodes(task: Task, own: job.Job | None) -> None:
    """ParbenchError when a cell needs more nodes than this process has."""
    wanted = task.cell["hardware"]["nodes"]
    if wanted > 1 and (own is None or len(own.nodes) != wanted):
        had = "no Slurm job" if own is None else f"job {own.number} of {len(own.nodes)} nodes"
        raise ParbenchError(
            f"{task.cell_path}: hardware.nodes is {wanted}, and this is {had}; run it with "
            "`snakemake --profile slurm`, which asks Slurm for them"
        )


if __name__ == "__main__":
    run_main(main)
