"""The ranks of one run: started as children of this process, watched, and ended together.

Their standard input is a pipe that only this process can write to: a rank whose input ends knows
that its launcher is gone, however that came, and ends as well (training/launched.py). What they
print goes into the log. Of a pair turns.py leads them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parbench import machine

LOOK_SECONDS = 0.1
# Seconds that a failed run has to end by itself: others may say why, and one that raised may hang
# in its libraries' teardown.
SETTLE_SECONDS = 4.0
GRACE_SECONDS = 5.0  # between asking ranks to end and killing them
# What a rank does before it looks whether it shall stop. There is nothing yet to be kept.
BEFORE = ("start-up", "warm-up")
MOST_BYTES = 65536  # of a log's end
# srun's own words on how a task ended.
TASK = re.compile(r"^srun: error: (?P<node>\S+): tasks? (?P<rank>\d+)[^:]*: (?P<how>.+)", re.M)


@dataclass(frozen=True)
class Program:
    """What starts some ranks: one rank, or all of them where srun does."""

    words: Sequence[str]
    environment: Mapping[str, str]


@dataclass
class Ended:
    """How a run ended.

    ``deaths``: (time, rank, exit code, negative for a signal) of ranks that failed, the first one
    first; of those that srun started, ``task`` matches srun's words on the first one (TASK), and
    ``status`` is its own. ``words``: the ranks' last ones; ``hung``: a sentence when one hung;
    ``kernel_killed``: the kernel has killed somebody for lack of memory; ``stopped``: where they
    stopped when they were asked to.
    """

    deaths: list[tuple[float, int, int]] = field(default_factory=list)
    task: re.Match | None = None
    status: int = 0
    words: dict[int, dict] = field(default_factory=dict)
    hung: str | None = None
    kernel_killed: bool = False
    stopped: dict | None = None


def run(
    programs: Mapping[int, Program],
    count: int,
    state: Path,
    log: Path,
    timeout: float,
    grace: float = 0.0,
    asked: Callable[[], bool] = lambda: False,
) -> Ended:
    """Run ``count`` ranks to their end, whatever that is; none of them lives afterwards.

    ``programs``: by rank; under -1 the one that starts them all. ``state``: the run's folder
    (PARBENCH_STATE); ``log`` is written anew; ``timeout``: seconds without a sign of life after
    which a rank is taken for hung; ``asked`` says, whenever it is called, whether they shall write
    a checkpoint and stop within ``grace`` seconds.
    """
    kills = machine.oom_kills()
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"$ {shlex.join(next(iter(programs.values())).words)}\n", encoding="utf-8")
    found = Ended()
    with started(programs, log) as processes:
        found.hung = _follow(processes, found, count, state, timeout, grace, asked)
        look_back(processes, found, state, log)
    # Once all have ended: a rank that failed leaves its last words late.
    found.words = found.words or last_words(state)
    found.kernel_killed = machine.oom_kills() > kills
    stopped = state / "stopped.json"
    found.stopped = json.loads(stopped.read_text()) if stopped.exists() else None
    return found


@contextlib.contextmanager
def started(
    programs: Mapping[int, Program], log: Path, read: bool = False
) -> Iterator[dict[int, subprocess.Popen]]:
    """Start ``programs``; none of their processes lives afterwards.

    They are asked, then killed with all they started. ``read``: what they print is read from their
    standard output, and does not go into the log.
    """
    processes: dict[int, subprocess.Popen] = {}
    try:
        with open(log, "ab") as output:
            for number, program in programs.items():
                processes[number] = subprocess.Popen(
                    program.words,
                    env=dict(program.environment),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE if read else output,
                    stderr=output,
                    start_new_session=True,  # Ctrl-C is heard by this process alone
                )
        yield processes
    finally:
        for process in processes.values():
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in processes.values():
                with contextlib.suppress(ProcessLookupError):  # of a session that is empty
                    os.killpg(process.pid, number)
            deadline = time.monotonic() + GRACE_SECONDS
            for process in processes.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))


def look_back(
    processes: Mapping[int, subprocess.Popen], found: Ended, state: Path, log: Path
) -> None:
    """Note in ``found`` what has died until now: that died by itself."""
    running(processes, found)
    found.task = TASK.search(end_of(log))
    found.words = last_words(state)


def running(processes: Mapping[int, subprocess.Popen], found: Ended) -> set[int]:
    """Those that have not ended; ``found`` gets how the others did."""
    for number, process in processes.items():
        if process.returncode is None and (code := process.poll()):
            if number < 0:
                found.status = code
            else:
                # Apptainer gives a signal's number as a shell does.
                code = 128 - code if 128 < code < 160 else code
                found.deaths.append((time.time(), number, code))
    return {number for number, process in processes.items() if process.returncode is None}


def _follow(
    processes: Mapping[int, subprocess.Popen],
    found: Ended,
    count: int,
    state: Path,
    timeout: float,
    grace: float,
    asked: Callable[[], bool],
) -> str | None:
    """Until all have ended, one has failed, or it is time to end them; a sentence if one hangs."""
    beats = Heartbeats(state, count)
    failed = deadline = None
    while alive := running(processes, found):
        time.sleep(LOOK_SECONDS)
        beats.look()
        now = time.monotonic()
        if deadline is None and asked():
            if not beats.training():
                return None
            (state / "stop").touch()
            deadline = now + grace
        if failed is None and (found.deaths or last_words(state)):
            failed = now
        if failed is not None:
            if now > failed + SETTLE_SECONDS:
                return None
        # Of srun's ranks only itself knows which have ended.
        elif hung := beats.hung(range(count) if -1 in alive else alive, timeout):
            return hung
        if deadline is not None and now > deadline:
            return None
    return None


class Heartbeats:
    """The signs of life that ranks leave as files in ``state`` (training/progress.py)."""

    def __init__(self, state: Path, count: int):
        self._paths = [state / f"rank{number}.heartbeat" for number in range(count)]
        self._changed = [time.monotonic()] * count
        self._stamps: list[int | None] = [None] * count

    def look(self) -> None:
        """Take note of new ones."""
        for number, path in enumerate(self._paths):
            stamp = path.stat().st_mtime_ns if path.exists() else None
            if stamp != self._stamps[number]:
                self._stamps[number], self._changed[number] = stamp, time.monotonic()

    def training(self) -> bool:
        """Whether the ranks are where they look for the wish that they stop."""
        said = [json.loads(path.read_text()) for path in self._paths if path.exists()]
        return any(each["phase"] not in BEFORE for each in said)

    def hung(self, alive: Iterable[int], timeout: float) -> str | None:
        """A sentence when one of the ranks ``alive`` stands still for ``timeout`` seconds."""
        number = min(alive, key=lambda number: self._changed[number])
        if time.monotonic() - self._changed[number] < timeout:
            return None
        where = "since the start"
        if self._stamps[number] is not None:
            said = json.loads(self._paths[number].read_text())
            step = f"epoch {said['epoch']} step {said['step']}"
            where = f"in {step if said['epoch'] else said['phase']}"
        return f"rank {number} hung: no progress for {timeout:g} s {where}"


def last_words(state: Path) -> dict[int, dict]:
    """What ranks said before they died: {rank: {rank, time, kind, message}}."""
    words = [json.loads(path.read_text()) for path in state.glob("rank*.error.json")]
    return {each["rank"]: each for each in words}


def end_of(log: Path) -> str:
    """The end of a log, which may be long; empty where there is none."""
    if not log.exists():
        return ""
    with open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_BYTES))
        return file.read().decode(errors="replace")
