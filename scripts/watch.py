"""The ranks of a run: their signs of life, their deaths, and who was the first to die of what."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stopping import signal_name

# A rank that is killed takes the others' connections with it. Their errors are older than the
# launcher's knowledge of the death by no more than this.
SLACK_SECONDS = 1.0
# By these a run is ended whose ranks have failed: by torchrun, by the launcher.
ENDERS = (-signal.SIGTERM, -signal.SIGHUP)
# What a rank does before it looks whether it shall stop. There is nothing yet to be kept.
BEFORE = ("start-up", "warm-up")


@dataclass
class Rank:
    """What is known of one training process."""

    number: int
    changed: float  # time.monotonic() of its last sign of life
    stamp: int = 0
    pid: int | None = None
    beat: dict = field(default_factory=dict)
    ended: float | None = None  # time.time() at which it was found dead
    code: int | None = None  # its exit status, negative for a signal


class Watch:
    """Follows the ranks ``numbers`` of a run through the files that they leave in ``state``."""

    def __init__(self, state: Path, numbers: range, selector: selectors.BaseSelector):
        self.state = state
        now = time.monotonic()
        self.ranks = [Rank(number, now) for number in numbers]
        self._failed: float | None = None
        self._selector = selector

    def look(self, lines: Sequence[str]) -> None:
        """Take note of new heartbeats and of deaths; ``lines``: the last ones of the output."""
        for rank in self.ranks:
            path = self.state / f"rank{rank.number}.heartbeat"
            with contextlib.suppress(OSError, ValueError):
                stamp = path.stat().st_mtime_ns
                if stamp != rank.stamp:
                    rank.beat = json.loads(path.read_text())
                    rank.stamp, rank.changed = stamp, time.monotonic()
                    self._follow(rank, int(rank.beat["pid"]))
            if rank.pid is not None and rank.ended is None:
                self._see_death(rank)
        if self._failed is None and (
            self.errors()
            or any(rank.code for rank in self.ranks)
            or any(ENDING.search(line) for line in lines)
        ):
            self._failed = time.monotonic()

    def failed_for(self) -> float | None:
        """Seconds since a rank was first seen to have failed."""
        return None if self._failed is None else time.monotonic() - self._failed

    def can_stop(self) -> bool:
        """Whether the ranks are where they look for the wish that they stop."""
        return any(rank.beat.get("phase", "start-up") not in BEFORE for rank in self.ranks)

    def _follow(self, rank: Rank, pid: int) -> None:
        if rank.pid is None:
            rank.pid = pid
            # Wakes the launcher at once: who died first, and of what, is soon forgotten.
            with contextlib.suppress(OSError, AttributeError):
                self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, "rank")

    def _see_death(self, rank: Rank) -> None:
        try:
            # After the name, which may hold anything: state is the first word, exit code the last.
            words = Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            rank.ended = time.time()
            return
        if words[0] in "ZX":
            rank.ended, status = time.time(), int(words[-1])
            if status:
                rank.code = os.waitstatus_to_exitcode(status)

    def hung(self, timeout: float) -> str | None:
        """A sentence when a rank, or the program above the ranks, stands still."""
        now = time.monotonic()
        living = [rank for rank in self.ranks if rank.ended is None]
        if not living:
            latest = max(rank.ended or 0.0 for rank in self.ranks)
            if time.time() - latest < timeout:
                return None
            return f"the ranks ended {timeout:g} s ago, but the program that started them did not"
        rank = min(living, key=lambda rank: rank.changed)
        if now - rank.changed < timeout:
            return None
        where = "since the start"
        if rank.beat.get("epoch"):
            where = f"in epoch {rank.beat['epoch']} step {rank.beat['step']}"
        elif rank.beat:
            where = f"in {rank.beat['phase']}"
        return f"rank {rank.number} hung: no progress for {timeout:g} s {where}"

    def errors(self) -> dict[int, tuple[float, dict]]:
        """The last words of ranks: {rank: (time, {kind, message, traceback})}."""
        return last_words(self.state, [rank.number for rank in self.ranks])

    def conclude(self, returncode: int, text: str) -> None:
        """Complete the ranks' exit statuses by that of the program that started them, and by its
        output ``text``."""
        told = told_ends(text, self.ranks[0].number)
        if len(self.ranks) == 1 and returncode != 0:
            told.setdefault(self.ranks[0].number, returncode)
        for rank in self.ranks:
            if rank.code is None:
                rank.code = told.get(rank.number)


def last_words(state: Path, numbers: Iterable[int]) -> dict[int, tuple[float, dict]]:
    """What ranks said before they died: {rank: (time, {kind, message, traceback})}."""
    found = {}
    for number in numbers:
        path = state / f"rank{number}.error.json"
        with contextlib.suppress(OSError, ValueError):
            found[number] = (path.stat().st_mtime, json.loads(path.read_text()))
    return found


# What torchrun and scripts/horovod_node.py say about the end of a rank.
ENDS = (
    re.compile(r"rank\s+: (?P<rank>\d+) \(local_rank: \d+\)\s+exitcode\s+: (?P<code>-?\d+)"),
    re.compile(r"\(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+)"),
    re.compile(r"Process (?P<rank>\d+) exit with status code (?P<code>\d+)"),
)


# What they say when they ask the other ranks to end, who do not hear that (see children.start): the
# failed one may have died before its first sign of life.
ENDING = re.compile(r"closing signal SIG|failed \(exitcode|Terminating remaining workers")


def told_ends(text: str, first: int = 0) -> dict[int, int]:
    """Exit codes of ranks, negative for signals, as far as ``text`` (a log) tells them.

    ``first``: the first rank of the node, from which local ranks count.
    """
    found: dict[int, int] = {}
    for pattern in ENDS:
        for match in pattern.finditer(text):
            groups, code = match.groupdict(), int(match["code"])
            rank = int(groups["rank"]) if "rank" in groups else first + int(groups["local"])
            found.setdefault(rank, 128 - code if code > 128 else code)
    return found


@dataclass(frozen=True)
class Failure:
    """Why a run failed. ``killed``: by SIGKILL. ``out_of_memory``: that is a result, then."""

    sentence: str
    killed: bool = False
    out_of_memory: bool = False


def find_failure(
    ranks: list[Rank], errors: dict[int, tuple[float, dict]], returncode: int, text: str
) -> Failure:
    """Which rank of a failed run was the first to die, and of what.

    ``errors``: the ranks' last words; ``returncode`` is the status of the program that started
    them, ``text`` the output.
    """
    count = len(ranks)
    for number, (_, error) in sorted(errors.items()):
        if error.get("kind") == "out_of_memory":
            return Failure(_rank_said(number, count, error), out_of_memory=True)

    deaths = [  # of ranks that could not say why
        (rank.ended or 0.0, rank.number, rank.code)
        for rank in ranks
        if rank.code and rank.number not in errors
    ]
    # These are sent to the others when one has failed.
    deaths = [death for death in deaths if death[2] not in ENDERS] or deaths
    spoken = min(errors.items(), key=lambda item: item[1][0], default=None)
    if deaths:
        when, number, code = min(deaths)
        # Aborting is what libraries do about another rank's failure; nobody is killed for one.
        slack = 0.0 if code in (-signal.SIGABRT, *ENDERS) else SLACK_SECONDS
        if spoken is None or when <= spoken[1][0] + slack:
            return Failure(_rank_died(number, count, code), killed=code == -signal.SIGKILL)
    if spoken is not None:
        return Failure(_rank_said(spoken[0], count, spoken[1][1]))
    last = "\n".join(text.rstrip().splitlines()[-5:])
    return Failure(
        "no rank says why; the program that starts the ranks died: "
        f"{_died_of(returncode)}; the last lines of output are\n{last}"
    )


def _rank_said(number: int, count: int, error: dict) -> str:
    return f"rank {number} of {count}: {error.get('message', 'no message')}"


def _rank_died(number: int, count: int, code: int) -> str:
    return f"rank {number} of {count} died: {_died_of(code)}"


def _died_of(code: int) -> str:
    if code < 0:
        return f"killed by signal {-code} ({signal_name(-code)})"
    return f"exit status {code}"
