"""Measure the sides of a pair in interleaved turns.

Turns follow A B, B A, B A, A B, so that drift and clock speed affect all sides alike (randomized
multiple interleaved trials, Abedi and Brecht 2017); other programs can slow the side with more
cores more, and what they use is measured. A side's turns of about a
second together are a slice, and one slice of each side is a pair of slices. The ranks run
training/pair_rank.py.
"""

from __future__ import annotations

import itertools
import json
import math
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from parbench import strategies
from parbench.cell import Pair
from parbench.files import read_json
from parbench.launch.ranks import CAUSE_SECONDS, POLL_SECONDS, Heartbeats, Ranks
from parbench.training import launched

if TYPE_CHECKING:
    from parbench.measure.metrics_types import PairSideJson, PeakMemoryJson, SliceJson

MARK = launched.MARK.encode()
PAIRS = 4  # undisturbed pairs of slices in one restart
SLICE_SECONDS = 1.0
# The speed of a core that other machines share changes within a second: turns must be shorter for
# both sides to run at both speeds (docs/verdicts.md).
TURN_SECONDS = 0.1
# The share of a slice in which other programs or the hypervisor used its cores. It does not depend
# on what a side does itself, so dropping disturbed pairs of slices favors neither
# side.
DISTURBED = 0.05


@dataclass
class SideRanks(Ranks):
    """A side of a pair: its ranks, with their own folder, and a log shared by all sides."""

    reports: list[dict] = field(default_factory=list)  # reports of ranks for the current turn
    pids: dict[str, list[int]] = field(default_factory=dict)  # process ids of its ranks, by node
    steps: int = 1  # of a turn
    turns: int = 1  # of a slice
    peak_memory_mib: PeakMemoryJson | None = None  # as its ranks report it after a slice

    def json(self) -> PairSideJson:
        """Return the side's entry for metrics.json."""
        return {
            "steps": self.steps,
            "turns": self.turns,
            "environment": read_json(self.state / "environment.json"),
            "peak_memory_mib": self.peak_memory_mib,
        }


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of ``values``; None if any of them is None."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


@dataclass(frozen=True)
class Turn:
    """What a side did in a turn.

    ``samples``: of all ranks; ``seconds``: of the slowest rank that trains a model which the pair
    compares; ``others``: core seconds that other programs used, possibly negative because the
    kernel rounds; ``steal``: core seconds that the hypervisor took away; ``waited``: seconds in
    which some program waited for a core, None if the kernel does not report it; ``joules``: energy
    of the accelerators of all ranks, None if unknown.
    """

    samples: float
    seconds: float
    others: float
    steal: float
    waited: float | None
    joules: float | None = None


@dataclass(frozen=True, kw_only=True)
class TimedSlice(Turn):
    """The turns of a side in a pair, added up; ``others`` is not negative."""

    pair: int
    side: int

    @classmethod
    def of(cls, pair: int, side: int, turns: list[Turn]) -> TimedSlice:
        """Return the turns of ``side`` in ``pair`` as one slice."""
        return cls(
            sum(each.samples for each in turns),
            sum(each.seconds for each in turns),
            max(0.0, sum(each.others for each in turns)),
            sum(each.steal for each in turns),
            _sum(each.waited for each in turns),
            _sum(each.joules for each in turns),
            pair=pair,
            side=side,
        )

    @property
    def disturbed(self) -> bool:
        """Whether other programs used these cores for a noticeable part of the slice."""
        return self.others + self.steal > DISTURBED * self.seconds

    def json(self) -> SliceJson:
        """Return the slice's entry for metrics.json."""
        return {
            "samples": self.samples,
            "seconds": self.seconds,
            "others": self.others,
            "steal": self.steal,
            "waited": self.waited,
            "joules": self.joules,
            "pair": self.pair,
            "side": self.side,
            "disturbed": self.disturbed,
        }


def turn_seconds(pair: Pair) -> float:
    """Return how many seconds a turn of ``pair`` lasts.

    A turn is a whole slice on GPUs, whose energy NVML updates only some ten times a second, and for
    strategies that short turns would slow down.
    """
    on_gpus = any(side.hardware.device != "cpu" for side in pair.sides)
    short = all(strategies.load(side.strategy.name).SHORT_TURNS for side in pair.sides)
    return TURN_SECONDS if short and not on_gpus else SLICE_SECONDS


def warmed_up(
    turn: Callable[[int, int], Turn], sides: Iterable[int], seconds: float
) -> tuple[list[int], int]:
    """Warm up each of ``sides`` for a step, then for about a slice.

    Returns the number of steps of each side's turn, and the number of turns of a slice. ``turn``
    takes the number of a side and a number of steps. A turn lasts about ``seconds``, or one step of
    the slowest side if that is longer.
    """
    seconds_of_step = []
    for side in sides:
        steps = math.ceil(SLICE_SECONDS / turn(side, 1).seconds)
        seconds_of_step.append(turn(side, steps).seconds / steps)
    length = max(seconds, *seconds_of_step)
    return [math.ceil(length / each) for each in seconds_of_step], max(
        1, round(SLICE_SECONDS / length)
    )


def interleaved(turn: Callable[[int], Turn], sides: int, turns: int, most: int) -> list[TimedSlice]:
    """Measure pairs of slices until PAIRS of them are undisturbed, but at most ``most`` of them.

    A slice has ``turns`` turns; ``turn`` takes the number of a side. Returns all slices.
    """
    slices: list[TimedSlice] = []
    undisturbed = pair = 0
    forth, back = range(sides), range(sides)[::-1]
    orders = itertools.cycle([forth, back, back, forth])
    while undisturbed < PAIRS and pair < most:
        taken: dict[int, list[Turn]] = {}  # in the order of the first turns
        for order in itertools.islice(orders, turns):
            for number in order:
                taken.setdefault(number, []).append(turn(number))
        pair_slices = [TimedSlice.of(pair, number, each) for number, each in taken.items()]
        slices += pair_slices
        undisturbed += not any(each.disturbed for each in pair_slices)
        pair += 1
    return slices


class TurnsAborted(Exception):
    """Raised when a rank fails or hangs, or when the run was asked to stop."""


def run(
    sides: list[SideRanks],
    seconds: float,
    timeout: float,
    stop: Callable[[], bool],
    restarting: bool = False,
) -> list[TimedSlice]:
    """Measure ``sides`` in turn, end all their processes, and return the slices.

    Returns no slice if a side failed; the reason is in its fields. ``seconds``: of a turn;
    ``timeout``: seconds without a heartbeat after which a rank counts as hung; once ``stop()`` is
    true, all ranks are ended; ``restarting``: start the processes again for each turn, for sides
    that do not fit into memory together.
    """
    sides[0].log.write_text("", encoding="utf-8")
    turns = _TurnTaking(sides, seconds, timeout, stop)
    with suppress(TurnsAborted):
        return turns.restart_each_turn() if restarting else turns.keep_started()
    return []


class _TurnTaking:
    def __init__(
        self, sides: list[SideRanks], seconds: float, timeout: float, stop: Callable[[], bool]
    ):
        self.sides, self.seconds, self.timeout, self.stop = sides, seconds, timeout, stop
        self._reports: queue.SimpleQueue[tuple[int, dict]] = queue.SimpleQueue()

    def keep_started(self) -> list[TimedSlice]:
        """Measure sides that all stay in memory while one runs. Raises TurnsAborted."""
        numbers = range(len(self.sides))
        with self._started(*numbers):
            steps, turns = warmed_up(self._turn, numbers, self.seconds)
            for side, count in zip(self.sides, steps, strict=True):
                side.steps, side.turns = count, turns
            return interleaved(self._planned_turn, len(self.sides), turns, 2 * PAIRS)

    def restart_each_turn(self) -> list[TimedSlice]:
        """Measure with a separate run for each slice. Raises TurnsAborted."""

        def single_turn(number: int) -> Turn:
            with self._started(number):
                (steps,), _ = warmed_up(self._turn, [number], SLICE_SECONDS)
                self.sides[number].steps = steps
                return self._planned_turn(number)

        # Disturbed pairs are not replaced: each pair costs two starts.
        return interleaved(single_turn, len(self.sides), 1, PAIRS)

    @contextmanager
    def _started(self, *numbers: int) -> Iterator[None]:
        """Start the ranks of these sides; end them at the end of the context."""
        sides = [self.sides[number] for number in numbers]
        with ExitStack() as stack:
            for number, side in zip(numbers, sides, strict=True):
                (side.state / "store").unlink(missing_ok=True)  # of an earlier run
                stack.enter_context(side.started(read=True))
                for process in side.processes.values():
                    threading.Thread(target=self._read, args=(number, process), daemon=True).start()
            for number in numbers:
                for row in self._await_reports(number):
                    self.sides[number].pids.setdefault(row["node"], []).extend(row["pids"])
            yield
        for side in sides:
            side.pids = {}

    def _planned_turn(self, number: int) -> Turn:
        return self._turn(number, self.sides[number].steps)

    def _turn(self, number: int, steps: int) -> Turn:
        side = self.sides[number]
        pids_by_node: dict[str, list[int]] = {}
        for other in self.sides:
            for node, pids in other.pids.items() if other is not side else ():
                pids_by_node.setdefault(node, []).extend(pids)
        self._send(side, json.dumps({"steps": steps, "stop": pids_by_node}))
        rows = self._await_reports(number)
        nodes = {row["node"]: row for row in rows}.values()  # ranks on a node see the same cores
        busy, own = sum(row["busy"] for row in nodes), sum(row["own"] for row in rows)
        side.peak_memory_mib = rows[0].get("peak_memory_mib")
        return Turn(
            rows[0]["samples"],
            max(row["seconds"] for row in rows if row["compared"]),
            busy - own,
            sum(row["steal"] for row in nodes),
            _sum(row["waited"] for row in nodes),
            _sum(row["joules"] for row in rows),
        )

    def _send(self, side: SideRanks, line: str) -> None:
        for process in side.processes.values():
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # a dead rank is noticed elsewhere
                process.stdin.write(f"{line}\n".encode())
                process.stdin.flush()

    def _read(self, number: int, process: subprocess.Popen) -> None:
        """Read a program's output: queue its reports, write everything else to the log."""
        assert process.stdout is not None
        with open(self.sides[number].log, "ab", buffering=0) as log:
            for line in process.stdout:
                if line.startswith(MARK):
                    self._reports.put((number, json.loads(line.removeprefix(MARK))))
                else:
                    log.write(line)

    def _await_reports(self, number: int) -> list[dict]:
        """Wait for a report of each rank of a side; return them by rank. Raises TurnsAborted."""
        side = self.sides[number]
        beats = Heartbeats(side)
        while len(side.reports) < side.count:
            try:
                sender, report = self._reports.get(timeout=POLL_SECONDS)
                self.sides[sender].reports.append(report)
            except queue.Empty:
                beats.poll()
                self._check(side, beats)
        rows, side.reports = sorted(side.reports, key=lambda row: row["rank"]), []
        return rows

    def _check(self, side: SideRanks, beats: Heartbeats) -> None:
        """Raise TurnsAborted if asked to stop, if a rank failed, or if a rank of ``side``, whose
        turn it is, hangs or has ended."""
        if self.stop():
            raise TurnsAborted
        if any(each.failed() for each in self.sides):
            time.sleep(CAUSE_SECONDS)  # other ranks may still report the cause
            raise TurnsAborted
        alive = side.alive()
        side.hung = beats.hung(alive, self.timeout) if alive else None
        if not alive or side.hung:
            raise TurnsAborted
