"""Measure the sides of a pair in interleaved slices: whose turn it is, and for how many steps.

Slices last about a second and follow A B, B A, B A, A B, so that drift, neighbours and clock speed
affect all sides alike (randomized multiple interleaved trials, Abedi and Brecht 2017). The ranks'
part is training/turns.py.
"""

from __future__ import annotations

import json
import math
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field

from parbench.files import read_json
from parbench.launch.ranks import LOOK_SECONDS, SETTLE_SECONDS, Heartbeats, Ranks
from parbench.training import launched

MARK = launched.MARK.encode()
PAIRS = 4  # undisturbed pairs of slices in one restart
SLICE_SECONDS = 1.0
# The share of a slice in which other programs or the hypervisor used its cores. Depends on nothing
# that a side does itself, so that dropping disturbed pairs favours neither side.
DISTURBED = 0.05


@dataclass
class Side(Ranks):
    """A side of a pair: its ranks, with their own folder, and a log shared by all sides."""

    lines: list[dict] = field(default_factory=list)  # reports of ranks for the current turn
    pids: dict[str, list[int]] = field(default_factory=dict)  # of its processes, by node
    steps: int = 1  # of a slice
    peak_memory_mib: dict | None = None  # as its ranks know it after a slice

    def json(self) -> dict:
        """Return the side's entry for metrics.json."""
        return {
            "steps": self.steps,
            "environment": read_json(self.state / "environment.json"),
            "peak_memory_mib": self.peak_memory_mib,
        }


@dataclass(frozen=True)
class Slice:
    """One turn of a side: ``samples`` of all ranks, ``seconds`` of the slowest rank that trains a
    model which the pair compares.

    ``others``: core seconds that other programs used; ``steal``: that the hypervisor took away;
    ``waited``: seconds in which some program waited for a core, None if the kernel does not tell;
    ``joules``: of the accelerators of all ranks, None if unknown.
    """

    pair: int
    side: int
    samples: float
    seconds: float
    others: float
    steal: float
    waited: float | None
    joules: float | None = None

    @property
    def disturbed(self) -> bool:
        """Whether others used its cores for a noticeable share of the slice."""
        return self.others + self.steal > DISTURBED * self.seconds

    def json(self) -> dict:
        """Return the slice's entry for metrics.json."""
        return asdict(self) | {"disturbed": self.disturbed}


def warmed_up(turn: Callable[[int], Slice]) -> int:
    """Warm a side up by a step and by about a slice; return the steps of its slices.

    ``turn`` takes the number of steps.
    """
    steps = 1
    for _ in range(2):
        steps = math.ceil(SLICE_SECONDS * steps / turn(steps).seconds)
    return steps


def interleaved(turn: Callable[[int, int], Slice], sides: int, most: int) -> list[Slice]:
    """Measure pairs of slices until PAIRS are undisturbed, and no more than ``most``; ``turn`` gets
    the numbers of a side and of the pair."""
    slices: list[Slice] = []
    undisturbed = pair = 0
    while undisturbed < PAIRS and pair < most:
        order = list(range(sides))
        pair_slices = [turn(n, pair) for n in (order if pair % 4 in (0, 3) else order[::-1])]
        slices += pair_slices
        undisturbed += not any(each.disturbed for each in pair_slices)
        pair += 1
    return slices


class Over(Exception):
    """Ranks failed or hang, or all were asked to stop."""


def run(
    sides: list[Side], timeout: float, stop: Callable[[], bool], apart: bool = False
) -> list[Slice]:
    """Measure ``sides`` in turn, end all their processes, and return the slices.

    Returns none if a side failed; the side knows why. ``timeout``: seconds without a heartbeat
    after which a rank counts as hung. Once ``stop()`` is true, all end. ``apart``: start each turn
    anew, for sides that do not fit into memory together.
    """
    sides[0].log.write_text("", encoding="utf-8")
    lead = _Lead(sides, timeout, stop)
    with suppress(Over):
        return lead.apart() if apart else lead.together()
    return []


class _Lead:
    def __init__(self, sides: list[Side], timeout: float, stop: Callable[[], bool]):
        self.sides, self.timeout, self.stop = sides, timeout, stop
        self._reports: queue.SimpleQueue[tuple[int, dict]] = queue.SimpleQueue()

    def together(self) -> list[Slice]:
        """Measure sides that all run at once, the waiting ones stopped. Raises Over."""
        numbers = range(len(self.sides))
        with self._started(*numbers):
            for number in numbers:
                self._warm_up(number)
            return interleaved(self._turn, len(self.sides), 2 * PAIRS)

    def apart(self) -> list[Slice]:
        """Measure with a separate run for each slice. Raises Over."""

        def whole(number: int, pair: int) -> Slice:
            with self._started(number):
                self._warm_up(number)
                return self._turn(number, pair)

        # No more pairs: each costs two starts.
        return interleaved(whole, len(self.sides), PAIRS)

    def _warm_up(self, number: int) -> None:
        """Warm a side up and set the number of steps of its slices."""
        side = self.sides[number]

        def turn(steps: int) -> Slice:
            side.steps = steps
            return self._turn(number, -1)

        side.steps = warmed_up(turn)

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
                for row in self._lines_of(number):
                    self.sides[number].pids.setdefault(row["node"], []).extend(row["pids"])
            yield
        for side in sides:
            side.pids = {}

    def _turn(self, number: int, pair: int) -> Slice:
        side = self.sides[number]
        pids_by_node: dict[str, list[int]] = {}
        for other in self.sides:
            for node, pids in other.pids.items() if other is not side else ():
                pids_by_node.setdefault(node, []).extend(pids)
        self._tell(side, json.dumps({"steps": side.steps, "stop": pids_by_node}))
        rows = self._lines_of(number)
        nodes = {row["node"]: row for row in rows}.values()  # ranks on a node see the same cores
        busy, own = sum(row["busy"] for row in nodes), sum(row["own"] for row in rows)
        waited = [row["waited"] for row in nodes]
        joules = [row["joules"] for row in rows]
        side.peak_memory_mib = rows[0].get("peak_memory_mib")
        return Slice(
            pair,
            number,
            rows[0]["samples"],
            max(row["seconds"] for row in rows if row["compared"]),
            max(0.0, busy - own),
            sum(row["steal"] for row in nodes),
            None if None in waited else sum(waited),
            None if None in joules else sum(joules),
        )

    def _tell(self, side: Side, line: str) -> None:
        for process in side.processes.values():
            with suppress(BrokenPipeError):  # a dead rank is noticed elsewhere
                process.stdin.write(f"{line}\n".encode())
                process.stdin.flush()

    def _read(self, number: int, process: subprocess.Popen) -> None:
        """Read a program's output: queue its reports, write everything else to the log."""
        with open(self.sides[number].log, "ab", buffering=0) as log:
            for line in process.stdout:
                if line.startswith(MARK):
                    self._reports.put((number, json.loads(line.removeprefix(MARK))))
                else:
                    log.write(line)

    def _lines_of(self, number: int) -> list[dict]:
        """Wait for a report of each rank of a side; return them by rank. Raises Over."""
        side = self.sides[number]
        beats = Heartbeats(side)
        while len(side.lines) < side.count:
            try:
                sender, report = self._reports.get(timeout=LOOK_SECONDS)
                self.sides[sender].lines.append(report)
            except queue.Empty:
                beats.look()
                self._check(side, beats)
        rows, side.lines = sorted(side.lines, key=lambda row: row["rank"]), []
        return rows

    def _check(self, side: Side, beats: Heartbeats) -> None:
        """Raise Over if all shall stop, any rank failed, or one of ``side``, which has the turn,
        hangs or has ended."""
        if self.stop():
            raise Over
        if any(each.failed() for each in self.sides):
            time.sleep(SETTLE_SECONDS)  # other ranks may still report the cause
            raise Over
        alive = side.alive()
        side.hung = beats.hung(alive, self.timeout) if alive else None
        if not alive or side.hung:
            raise Over
