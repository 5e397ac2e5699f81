"""The ranks of one run: started as children of this process, watched, and ended together.

Their standard input is a pipe that only this process can write to: a rank whose input ends knows
that its launcher is gone, however that came, and ends as well (training/launched.py). What they
print goes into the log. Of a pair turns.py leads them.
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


def place(rank: int, per_node: int, world_size: int) -> dict[str, str]:
    """The variables that tell a rank its place among ``world_size`` ranks, ``per_node`` a node."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % per_node),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(per_node),
    }


@dataclass
class Ranks:
    """The ``count`` ranks of a run, or of one side of a pair, and how they ended.

    ``programs``: by rank; under -1 the one that starts them all, which ended with ``status``.
    ``state``: the run's folder (PARBENCH_STATE). ``deaths``: (time, rank, exit code, negative for
    a signal) of ranks that failed by themselves, the first one first; ``words``: the last ones of
    each rank, with its ``rank``, ``time``, ``kind`` and ``message``; ``hung``: a sentence when one
    hung; ``kernel_killed``: the kernel has killed somebody for lack of memory; ``printed``: what
    the ``log`` held when they were ended.
    """

    programs: Mapping[int, Program]
    count: int
    state: Path
    log: Path
    processes: dict[int, subprocess.Popen] = field(default_factory=dict)
    deaths: list[tuple[float, int, int]] = field(default_factory=list)
    status: int = 0
    words: dict[int, dict] = field(default_factory=dict)
    hung: str | None = None
    kernel_killed: bool = False
    printed: str = ""

    @contextlib.contextmanager
    def started(self, read: bool = False) -> Iterator[None]:
        """Start the programs; none of their processes lives afterwards.

        They are asked, then killed with all they started. ``read``: what they print is read from
        their standard output, and does not go into the log.
        """
        self.processes, kills = {}, machine.oom_kills()
        try:
            with open(self.log, "ab") as output:
                for number, program in self.programs.items():
                    self.processes[number] = subprocess.Popen(
                        program.words,
                        env=dict(program.environment),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE if read else output,
                        stderr=output,
                        start_new_session=True,  # Ctrl-C is heard by this process alone
                    )
            yield
        finally:
            self.failed()  # what has died until now died by itself
            with contextlib.suppress(OSError):  # somebody may have deleted it
                self.printed = self.log.read_text(encoding="utf-8", errors="replace")
            self._end()
            # A rank that failed leaves its last words late.
            self.words = self.words or self._last_words()
            self.kernel_killed |= machine.oom_kills() > kills

    def _end(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes.values():
                with contextlib.suppress(ProcessLookupError):  # of a session that is empty
                    os.killpg(process.pid, number)
            deadline = time.monotonic() + GRACE_SECONDS
            for process in self.processes.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))

    def alive(self) -> set[int]:
        """Those that have not ended; how the others did is noted.

        Of srun's ranks only itself knows which have ended: all, while it lives.
        """
        for number, process in self.processes.items():
            if process.returncode is None and (code := process.poll()):
                if number < 0:
                    self.status = code
                else:
                    # Apptainer gives a signal's number as a shell does.
                    code = 128 - code if 128 < code < 160 else code
                    self.deaths.append((time.time(), number, code))
        found = {number for number, one in self.processes.items() if one.returncode is None}
        return set(range(self.count)) if -1 in found else found

    def failed(self) -> bool:
        """Whether one has failed until now."""
        self.alive()
        self.words = self._last_words()
        return bool(self.deaths or self.status or self.words)

    def _last_words(self) -> dict[int, dict]:
        words = [json.loads(path.read_text()) for path in self.state.glob("rank*.error.json")]
        return {each["rank"]: each for each in words}

    @property
    def stopped(self) -> dict | None:
        """Where their training stopped when they were asked to."""
        path = self.state / "stopped.json"
        return json.loads(path.read_text()) if path.exists() else None


def run(
    ranks: Ranks, timeout: float, grace: float = 0.0, asked: Callable[[], bool] = lambda: False
) -> None:
    """Run ``ranks`` to their end, whatever that is; the log is written anew.

    ``timeout``: seconds without a sign of life after which a rank is taken for hung; ``asked``
    says, whenever it is called, whether they shall write a checkpoint and stop within ``grace``
    seconds.
    """
    command = shlex.join(next(iter(ranks.programs.values())).words)
    ranks.log.write_text(f"$ {command}\n", encoding="utf-8")
    with ranks.started():
        beats = Heartbeats(ranks)
        failed = deadline = None
        while alive := ranks.alive():
            time.sleep(LOOK_SECONDS)
            beats.look()
            now = time.monotonic()
            if deadline is None and asked():
                if not beats.training():
                    return
                (ranks.state / "stop").touch()
                deadline = now + grace
            if failed is None and ranks.failed():
                failed = now
            ranks.hung = None if failed else beats.hung(alive, timeout)
            late = failed and now > failed + SETTLE_SECONDS
            if ranks.hung or late or (deadline and now > deadline):
                return


class Heartbeats:
    """The signs of life that ranks leave as files in their folder (training/progress.py)."""

    def __init__(self, ranks: Ranks):
        self._paths = [ranks.state / f"rank{number}.heartbeat" for number in range(ranks.count)]
        self._changed = [time.monotonic()] * ranks.count
        self._stamps: list[int | None] = [None] * ranks.count

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
