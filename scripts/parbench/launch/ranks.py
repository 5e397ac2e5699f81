"""The ranks of one run: started as children of this process, watched, and ended together.

Their standard input is a pipe that only this process can write to: a rank whose input ends knows
that its launcher is gone, however that came, and ends as well (training/launched.py). What they
print goes into the log.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
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


class Ranks:
    """Running ranks, by number; under -1 the program that starts them all.

    ``bar``: what they say on stderr goes to the terminal, and not into the log.
    """

    def __init__(self, programs: Mapping[int, Program], log: Path, bar: bool):
        self.ended = Ended()
        self._programs: dict[int, subprocess.Popen] = {}
        reads_life, self._life = os.pipe()
        try:
            with open(log, "ab") as output:
                for number, program in programs.items():
                    self._programs[number] = subprocess.Popen(
                        program.words,
                        env=dict(program.environment),
                        stdin=reads_life,
                        stdout=output,
                        stderr=None if bar else output,
                        start_new_session=True,  # Ctrl-C is heard by this process alone
                    )
        except BaseException:
            self.end()
            raise
        finally:
            os.close(reads_life)

    def running(self) -> set[int]:
        """Those that have not ended; how the others did is noted."""
        alive = [n for n, process in self._programs.items() if process.returncode is None]
        for number in alive:
            code = self._programs[number].poll()
            if code is not None and number < 0:
                self.ended.status = code
            elif code:
                self.ended.deaths.append((time.time(), number, _exact(code)))
        return {n for n in alive if self._programs[n].returncode is None}

    def end(self) -> None:
        """None of them lives afterwards: they are asked, then killed with all they started."""
        os.close(self._life)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._programs.values():
                with contextlib.suppress(ProcessLookupError):  # of a session that is empty
                    os.killpg(process.pid, number)
            deadline = time.monotonic() + GRACE_SECONDS
            for process in self._programs.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))


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
    log: Path,
    timeout: float,
    grace: float = 0.0,
    asked: Callable[[], bool] = lambda: False,
    bar: bool = False,
) -> Ended:
    """Run ``count`` ranks to their end, whatever that is; none of them lives afterwards.

    ``state``: the run's folder (PARBENCH_STATE); ``log`` is written anew; ``timeout``: seconds
    without a sign of life after which a rank is taken for hung; ``asked`` says, whenever it is
    called, whether they shall write a checkpoint and stop within ``grace`` seconds; ``bar``: they
    draw on this process's terminal.
    """
    kills = machine.oom_kills()
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"$ {shlex.join(next(iter(programs.values())).words)}\n", encoding="utf-8")
    ranks = Ranks(programs, log, bar)
    found = ranks.ended
    try:
        found.hung = _follow(ranks, count, state, timeout, grace, asked)
        ranks.running()  # what has died until now died by itself
        found.deaths = sorted([*found.deaths, *_told_deaths(state)])
        found.errors = last_words(state)
    finally:
        ranks.end()
    # Once all have ended: a rank that failed leaves its last words late.
    found.errors = found.errors or last_words(state)
    found.kernel_killed = machine.oom_kills() > kills
    with contextlib.suppress(ParbenchError):
        found.stopped = read_json(state / "stopped.json")
    return found


def _follow(
    ranks: Ranks,
    count: int,
    state: Path,
    timeout: float,
    grace: float,
    asked: Callable[[], bool],
) -> str | None:
    """Until all have ended, one has failed, or it is time to end them; a sentence if one hangs."""
    beats = Heartbeats(state, count)
    failed = deadline = None
    while running := ranks.running():
        time.sleep(LOOK_SECONDS)
        beats.look()
        now = time.monotonic()
        if deadline is None and asked():
            if not beats.training():
                return None
            (state / "stop").touch()
            deadline = now + grace
        if failed is None and (ranks.ended.deaths or last_words(state) or any(_told_deaths(state))):
            failed = now
        if failed is not None:
            if now > failed + SETTLE_SECONDS:
                return None
        # Of srun's ranks only itself knows which have ended.
        elif hung := beats.hung(range(count) if -1 in running else running, timeout):
            return hung
        if deadline is not None and now > deadline:
            return None
    return None


def _told_deaths(state: Path) -> Iterator[tuple[float, int, int]]:
    """Deaths of ranks that srun has started, which scripts/rank.py tells of."""
    for path in state.glob("rank*.exit.json"):
        with contextlib.suppress(OSError, ValueError):
            told = json.loads(path.read_text())
            yield told["time"], told["rank"], _exact(told["code"])


def _exact(code: int) -> int:
    """An exit code, negative for a signal, whose number Apptainer gives as a shell does."""
    return 128 - code if 128 < code < 160 else code


def last_words(state: Path) -> dict[int, tuple[float, dict]]:
    """What ranks said before they died: {rank: (time, {kind, message, traceback})}."""
    found = {}
    for path in state.glob("rank*.error.json"):
        with contextlib.suppress(OSError, ValueError):
            words = json.loads(path.read_text())
            found[int(words["rank"])] = (path.stat().st_mtime, words)
    return found
