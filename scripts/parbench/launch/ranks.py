"""Start, watch and end the ranks of one run, which are child processes.

Their standard input is a pipe that only this process can write to. When it closes, their launcher
is gone, for whatever reason, and they end as well (training/launched.py). Their output goes into
the log. The ranks of a pair are driven by interleaving.py.
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

POLL_SECONDS = 0.1
# How long a failed run may take to end by itself: other ranks may still report the cause, but a
# rank that raised an exception may hang in its libraries' teardown.
CAUSE_SECONDS = 4.0
GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
# Phases in which a rank does not check for requests to stop, since there is nothing to save yet.
BEFORE = ("start-up", "warm-up")


@dataclass(frozen=True)
class RankCommand:
    """A command that starts one rank or, if it is srun, all of them."""

    arguments: Sequence[str]
    environment: Mapping[str, str]


@dataclass
class Ranks:
    """The ``count`` ranks of a run, or of one side of a pair, and how they ended.

    ``programs``: by rank, or under -1 the one that starts them all, whose exit code is ``status``.
    ``state``: the run's folder (PARBENCH_STATE). ``deaths``: (time, rank, exit code, negative for
    a signal) of ranks that failed by themselves, in order. ``errors``: {rank, time, kind, message}
    that ranks reported themselves, by rank. ``hung``: a sentence if a rank hung. ``stopped``: the
    epoch and step at which training stopped on request. ``oom_killed``: whether the kernel killed a
    process of the launcher's cgroup for lack of memory. ``printed``: the content of ``log`` when
    the ranks ended.
    """

    programs: Mapping[int, RankCommand]
    count: int
    state: Path
    log: Path
    processes: dict[int, subprocess.Popen] = field(default_factory=dict)
    deaths: list[tuple[float, int, int]] = field(default_factory=list)
    status: int = 0
    errors: dict[int, dict] = field(default_factory=dict)
    hung: str | None = None
    stopped: dict | None = None
    oom_killed: bool = False
    printed: str = ""

    @contextlib.contextmanager
    def started(self, read: bool = False) -> Iterator[None]:
        """Start the programs; at the end of the context, terminate all their processes.

        ``read``: the caller reads their standard output, which then does not go into the log.
        """
        self.processes, kills = {}, machine.oom_kills()
        try:
            with open(self.log, "ab") as output:
                for number, program in self.programs.items():
                    self.processes[number] = subprocess.Popen(
                        program.arguments,
                        env=dict(program.environment),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE if read else output,
                        stderr=output,
                        start_new_session=True,  # Ctrl-C reaches only this process
                    )
            yield
        finally:
            # Record deaths and stops before the ranks are terminated, which causes further ones.
            self.failed()
            path = self.state / "stopped.json"
            self.stopped = json.loads(path.read_text()) if path.exists() else None
            with contextlib.suppress(OSError):  # the log may have been deleted
                self.printed = self.log.read_text(encoding="utf-8", errors="replace")
            self._end()
            self.errors = self.errors or self._reported()  # some are written late
            self.oom_killed |= machine.oom_kills() > kills

    def _end(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(BrokenPipeError):
                assert process.stdin is not None
                process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes.values():
                with contextlib.suppress(ProcessLookupError):  # all of its group have ended
                    os.killpg(process.pid, number)
            deadline = time.monotonic() + GRACE_SECONDS
            for process in self.processes.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))

    def alive(self) -> set[int]:
        """Return the ranks that have not ended, and record how the others ended.

        While srun runs, all of its ranks count as alive: only srun knows which have ended.
        """
        for number, process in self.processes.items():
            if process.returncode is None and (code := process.poll()):
                if number < 0:
                    self.status = code
                else:
                    # Apptainer reports a signal as a shell does: 128 plus its number.
                    code = 128 - code if 128 < code < 160 else code
                    self.deaths.append((time.time(), number, code))
        running = {
            number for number, process in self.processes.items() if process.returncode is None
        }
        return set(range(self.count)) if -1 in running else running

    def failed(self) -> bool:
        """Return whether any rank has failed so far."""
        self.alive()
        self.errors = self._reported()
        return bool(self.deaths or self.status or self.errors)

    def _reported(self) -> dict[int, dict]:
        errors = [json.loads(path.read_text()) for path in self.state.glob("rank*.error.json")]
        return {error["rank"]: error for error in errors}


def run(
    ranks: Ranks, timeout: float, grace: float = 0.0, stop: Callable[[], bool] = lambda: False
) -> None:
    """Run ``ranks`` until they end, fail or hang; overwrites the log.

    ``timeout``: seconds without a heartbeat after which a rank counts as hung. Once ``stop()`` is
    true, the ranks are asked to write a checkpoint and to stop within ``grace`` seconds.
    """
    command = shlex.join(next(iter(ranks.programs.values())).arguments)
    ranks.log.write_text(f"$ {command}\n", encoding="utf-8")
    with ranks.started():
        heartbeats = Heartbeats(ranks)
        failed_at = deadline = None
        while alive := ranks.alive():
            time.sleep(POLL_SECONDS)
            heartbeats.poll()
            now = time.monotonic()
            if deadline is None and stop():
                if not heartbeats.training():
                    return
                (ranks.state / "stop").touch()
                deadline = now + grace
            if failed_at is None and ranks.failed():
                failed_at = now
            ranks.hung = None if failed_at else heartbeats.hung(alive, timeout)
            late = failed_at and now > failed_at + CAUSE_SECONDS
            if ranks.hung or late or (deadline and now > deadline):
                return


class Heartbeats:
    """The heartbeat files that ranks write into their folder (training/progress.py)."""

    def __init__(self, ranks: Ranks):
        self._paths = [ranks.state / f"rank{number}.heartbeat" for number in range(ranks.count)]
        self._changed = [time.monotonic()] * ranks.count
        self._stamps: list[int | None] = [None] * ranks.count

    def poll(self) -> None:
        """Record which heartbeats are new."""
        for rank, path in enumerate(self._paths):
            stamp = path.stat().st_mtime_ns if path.exists() else None
            if stamp != self._stamps[rank]:
                self._stamps[rank], self._changed[rank] = stamp, time.monotonic()

    def training(self) -> bool:
        """Return whether any rank has reached the phase in which it checks for stop requests."""
        beats = [json.loads(path.read_text()) for path in self._paths if path.exists()]
        return any(beat["phase"] not in BEFORE for beat in beats)

    def hung(self, alive: Iterable[int], timeout: float) -> str | None:
        """Return a sentence if a rank in ``alive`` has not made progress for ``timeout`` s."""
        rank = min(alive, key=lambda rank: self._changed[rank])
        if time.monotonic() - self._changed[rank] < timeout:
            return None
        where = "since the start"
        if self._stamps[rank] is not None:
            beat = json.loads(self._paths[rank].read_text())
            step = f"epoch {beat['epoch']} step {beat['step']}"
            where = f"in {step if beat['epoch'] else beat['phase']}"
        return f"rank {rank} hung: no progress for {timeout:g} s {where}"
