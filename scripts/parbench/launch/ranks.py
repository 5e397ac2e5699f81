"""The ranks of one run: started as children of this process, watched, and ended together.

Their standard input is a pipe that only this process can write to: a rank whose input ends knows
that its launcher is gone, however that came, and ends as well (training/rank.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parbench import machine
from parbench.errors import ParbenchError
from parbench.files import read_json

LOOK_SECONDS = 0.1
# Seconds that a failed run has to end by itself: others may say why, and one that raised may hang
# in its libraries' teardown.
SETTLE_SECONDS = 4.0
GRACE_SECONDS = 5.0  # between asking ranks to end and killing them
# What a rank does before it looks whether it shall stop. There is nothing yet to be kept.
BEFORE = ("start-up", "warm-up")


@dataclass(frozen=True)
class Program:
    """What starts some ranks: one rank, or all of them where srun does."""

    words: Sequence[str]
    environment: Mapping[str, str]


@dataclass
class Ended:
    """How a run ended.

    ``deaths``: (time, rank, exit code, negative for a signal) of ranks that failed, the first one
    first; ``status``: of a program that started them all; ``errors``: the ranks' last words with
    their time; ``hung``: a sentence when one hung; ``kernel_killed``: the kernel has killed
    somebody for lack of memory; ``stopped``: where they stopped when they were asked to.
    """

    deaths: list[tuple[float, int, int]] = field(default_factory=list)
    status: int = 0
    errors: dict[int, tuple[float, dict]] = field(default_factory=dict)
    hung: str | None = None
    kernel_killed: bool = False
    stopped: dict | None = None


class Output:
    """What the ranks print: into the log, and to the terminal where there is a bar to show."""

    def __init__(self, path: Path, to_terminal: bool = False):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.lines: deque[str] = deque(maxlen=400)
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115  (closed by close())
        self._to_terminal = to_terminal
        self._rest = b""

    def take(self, piece: bytes) -> None:
        """Some bytes of what they print."""
        if self._to_terminal:
            sys.stderr.buffer.write(piece)
            sys.stderr.buffer.flush()
        *complete, rest = (self._rest + piece).split(b"\n")
        for line in complete:
            self.say(_last_state(line))
        # A bar draws itself again and again without ever ending its line.
        self._rest = rest[max(0, rest.rstrip(b"\r").rfind(b"\r")) :]

    def say(self, line: str) -> None:
        """A line of the log. ParbenchError where it cannot be written."""
        self.lines.append(line)
        try:
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            raise ParbenchError(f"{self.path}: {error.strerror}; the cell was ended") from None

    def close(self) -> None:
        """Write what is left of the last line."""
        with contextlib.suppress(OSError, ParbenchError):  # said already
            if self._rest:
                self.say(_last_state(self._rest))
            self._file.close()


def _last_state(line: bytes) -> str:
    """What a terminal would show of a line that was drawn several times."""
    text = line.decode(errors="replace").rstrip("\r")
    return text.rpartition("\r")[2].rstrip()


class Ranks:
    """Running ranks, by number; under -1 the program that starts them all."""

    def __init__(self, programs: Mapping[int, Program]):
        reads_life, self._life = os.pipe()
        self._output, writes_output = os.pipe()
        self._programs: dict[int, subprocess.Popen] = {}
        try:
            for number, program in programs.items():
                self._programs[number] = subprocess.Popen(
                    program.words,
                    env=dict(program.environment),
                    stdin=reads_life,
                    stdout=writes_output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is heard by this process alone
                )
        except BaseException:
            self.end()
            raise
        finally:
            os.close(reads_life)
            os.close(writes_output)
        self.ended = Ended()

    def running(self) -> set[int]:
        """Those that have not ended; how the others did is noted."""
        for number, process in self._programs.items():
            known = process.returncode is not None
            code = process.poll()
            if code is not None and not known:
                if number < 0:
                    self.ended.status = code
                elif code:
                    self.ended.deaths.append((time.time(), number, _exact(code)))
        return {n for n, process in self._programs.items() if process.returncode is None}

    def read(self, output: Output, seconds: float) -> None:
        """Pass on what they print; waits at most ``seconds`` for it."""
        for _ in range(64):  # whoever never stops writing is watched, too
            if not select.select([self._output], [], [], seconds)[0]:
                return
            piece = os.read(self._output, 65536)
            if not piece:  # none of them has it open any more
                time.sleep(seconds)
                return
            output.take(piece)
            seconds = 0

    def end(self) -> None:
        """None of them lives afterwards: their input ends, then they are asked, then killed."""
        os.close(self._life)
        for number, seconds in ((None, 1.0), (signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, 30)):
            deadline = time.monotonic() + seconds
            for process in self._programs.values():
                # A session: what a rank has started ends with it.
                if number and (process.poll() is None or number == signal.SIGKILL):
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, number)
            for process in self._programs.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        left = [process.pid for process in self._programs.values() if process.poll() is None]
        if left:
            print(f"error: processes {left} do not end, not even by SIGKILL", file=sys.stderr)

    def close(self) -> None:
        """After ``end``, and the last ``read``."""
        os.close(self._output)


class Heartbeats:
    """The signs of life that ranks leave as files in ``state`` (training/progress.py)."""

    def __init__(self, state: Path, count: int):
        self._state = state
        self._changed = dict.fromkeys(range(count), time.monotonic())
        self._stamps: dict[int, int] = {}
        self.said: dict[int, dict] = {}

    def look(self) -> None:
        """Take note of new ones."""
        for number in self._changed:
            path = self._state / f"rank{number}.heartbeat"
            with contextlib.suppress(OSError, ValueError):
                stamp = path.stat().st_mtime_ns
                if stamp != self._stamps.get(number):
                    self.said[number] = json.loads(path.read_text())
                    self._stamps[number], self._changed[number] = stamp, time.monotonic()

    def training(self) -> bool:
        """Whether the ranks are where they look for the wish that they stop."""
        return any(each["phase"] not in BEFORE for each in self.said.values())

    def hung(self, alive: Iterable[int], timeout: float) -> str | None:
        """A sentence when one of the ranks ``alive`` stands still for ``timeout`` seconds."""
        number = min(alive, key=lambda number: self._changed[number], default=None)
        if number is None or time.monotonic() - self._changed[number] < timeout:
            return None
        said, where = self.said.get(number), "since the start"
        if said:
            where = f"in {said['phase']}"
        if said and said.get("epoch"):
            where = f"in epoch {said['epoch']} step {said['step']}"
        return f"rank {number} hung: no progress for {timeout:g} s {where}"


def run(
    programs: Mapping[int, Program],
    count: int,
    state: Path,
    output: Output,
    timeout: float,
    grace: float,
    asked: Callable[[], str | None] = lambda: None,
) -> Ended:
    """Run ``count`` ranks to their end, whatever that is; none of them lives afterwards.

    ``state``: the run's folder (PARBENCH_STATE); ``timeout``: seconds without a sign of life after
    which a rank is taken for hung; ``asked`` says, whenever it is called, whether they shall go on
    (None), write a checkpoint and stop within ``grace`` seconds ("stop"), or end at once ("end").
    """
    kills = machine.oom_kills()
    for program in list(programs.values())[:1]:
        output.say(f"$ {shlex.join(program.words)}")
    ranks = Ranks(programs)
    try:
        hung = _follow(ranks, count, state, output, timeout, grace, asked)
        ranks.running()  # what has died until now died by itself
        deaths = sorted([*ranks.ended.deaths, *_told_deaths(state)])
        found = Ended(deaths, ranks.ended.status, last_words(state), hung)
    finally:
        ranks.end()
        ranks.read(output, 0)
        ranks.close()
    # Once all have ended: a rank that failed leaves its last words late.
    found.errors = found.errors or last_words(state)
    found.status = found.status or ranks.ended.status
    found.kernel_killed = machine.oom_kills() > kills
    with contextlib.suppress(ParbenchError):
        found.stopped = read_json(state / "stopped.json")
    return found


def _follow(
    ranks: Ranks,
    count: int,
    state: Path,
    output: Output,
    timeout: float,
    grace: float,
    asked: Callable[[], str | None],
) -> str | None:
    """Until all have ended, one has failed, or it is time to end them; a sentence if one hangs."""
    beats = Heartbeats(state, count)
    failed = deadline = None
    while running := ranks.running():
        ranks.read(output, LOOK_SECONDS)
        beats.look()
        wish, now = asked(), time.monotonic()
        if wish == "stop" and deadline is None:
            if not beats.training():
                return None
            (state / "stop").touch()
            deadline = now + grace
        if wish == "end" or (deadline is not None and now > deadline):
            return None
        if failed is None and (ranks.ended.deaths or last_words(state) or any(_told_deaths(state))):
            failed = now
        if failed is not None and now > failed + SETTLE_SECONDS:
            return None
        # Of srun's ranks only itself knows which have ended.
        alive = range(count) if -1 in running else running
        hung = beats.hung(alive, timeout) if failed is None else None
        if hung is not None:
            return hung
    return None


def _told_deaths(state: Path) -> Iterator[tuple[float, int, int]]:
    """Deaths of ranks that srun has started, which scripts/rank.py tells of."""
    for path in state.glob("rank*.exit.json"):
        with contextlib.suppress(OSError, ValueError):
            told = json.loads(path.read_text())
            yield told["time"], told["rank"], _exact(told["code"])


def _exact(code: int) -> int:
    """An exit code, negative for a signal, whose number Apptainer gives as a shell does."""
    return 128 - code if code > 128 else code


def last_words(state: Path) -> dict[int, tuple[float, dict]]:
    """What ranks said before they died: {rank: (time, {kind, message, traceback})}."""
    found = {}
    for path in state.glob("rank*.error.json"):
        with contextlib.suppress(OSError, ValueError):
            words = json.loads(path.read_text())
            found[int(words["rank"])] = (path.stat().st_mtime, words)
    return found
