"""The sides of a pair, led from here: who has the turn, for how many steps, and what it took.

Slices of about a second, A B, B A, B A, A B: drift, neighbours and clock speed hit all sides alike
(randomized multiple interleaved trials, Abedi and Brecht 2017). The ranks' part is
training/turns.py.
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
PAIRS = 4  # of slices of each side, in one restart
SLICE_SECONDS = 1.0
LEAST_STEPS = 4  # of a slice
# Of a slice: in which others used its cores, or the machine below took them away. Judged by what
# is no side's own doing, so that dropping a pair favours none.
DISTURBED = 0.05


@dataclass
class Side(Ranks):
    """A side of a pair: its ranks, with a folder of their own, and a log that all sides share."""

    lines: list[dict] = field(default_factory=list)  # of ranks that have said what they have to
    where: dict[str, list[int]] = field(default_factory=dict)  # its processes by node
    steps: int = LEAST_STEPS

    def told(self) -> dict:
        """As metrics.json has it."""
        described = read_json(self.state / "environment.json")
        return {"steps": self.steps, "environment": described}


@dataclass(frozen=True)
class Slice:
    """A turn of a side: ``samples`` of all ranks in ``seconds`` of the slowest.

    ``others``: seconds in which other programs used the side's cores; ``steal``: in which the
    machine below took them away; ``waited``: in which any program waited for a core.
    """

    pair: int
    side: int
    samples: int
    seconds: float
    others: float
    steal: float
    waited: float | None

    @property
    def disturbed(self) -> bool:
        """Whether it was not alone."""
        return self.others + self.steal > DISTURBED * self.seconds

    def told(self) -> dict:
        """As metrics.json has it."""
        return asdict(self) | {"disturbed": self.disturbed}


class Over(Exception):
    """Ranks have failed, one hangs, or all are to end."""


def run(
    sides: list[Side], timeout: float, asked: Callable[[], bool], apart: bool = False
) -> list[Slice]:
    """Let ``sides`` take their turns; none of their processes lives afterwards.

    Returns the slices; none where a side failed, which knows why.
    ``timeout``: seconds without a sign of life after which a rank is taken for hung; ``asked``
    says whether all shall end now. ``apart``: each turn is a run of its own, for sides that do not
    fit into memory together.
    """
    sides[0].log.write_text("", encoding="utf-8")
    lead = _Lead(sides, timeout, asked)
    with suppress(Over):
        return lead.apart() if apart else lead.together()
    return []


class _Lead:
    def __init__(self, sides: list[Side], timeout: float, asked: Callable[[], bool]):
        self.sides, self.timeout, self.asked = sides, timeout, asked
        self._said: queue.SimpleQueue[tuple[int, dict]] = queue.SimpleQueue()

    def together(self) -> list[Slice]:
        """All slices of sides that live at once. Raises Over."""
        everyone = range(len(self.sides))
        with self._started(*everyone):
            for number in everyone:
                self._warm_up(number)
            return self._pairs(self._turn, 2 * PAIRS)

    def apart(self) -> list[Slice]:
        """The same, each slice in a run of its own. Raises Over."""

        def whole(number: int, pair: int) -> Slice:
            with self._started(number):
                self._warm_up(number)
                return self._turn(number, pair)

        return self._pairs(whole, PAIRS)  # each pair costs two starts

    def _pairs(self, turn: Callable[[int, int], Slice], most: int) -> list[Slice]:
        """Pairs of slices until enough of them were not disturbed, and at ``most`` so many."""
        slices: list[Slice] = []
        calm = pair = 0
        while calm < PAIRS and pair < most:
            order = list(range(len(self.sides)))
            made = [turn(n, pair) for n in (order if pair % 4 in (0, 3) else order[::-1])]
            slices += made
            calm += not any(each.disturbed for each in made)
            pair += 1
        return slices

    def _warm_up(self, number: int) -> None:
        """Let a side find how many steps its slices have."""
        side = self.sides[number]
        self._turn(number, -1)
        seconds = self._turn(number, -1).seconds / side.steps
        side.steps = max(LEAST_STEPS, math.ceil(SLICE_SECONDS / seconds))

    @contextmanager
    def _started(self, *numbers: int) -> Iterator[None]:
        """Start the ranks of these sides, and end them: what they were for is measured by then."""
        sides = [self.sides[number] for number in numbers]
        with ExitStack() as stack:
            for number, side in zip(numbers, sides, strict=True):
                (side.state / "store").unlink(missing_ok=True)  # of a run before
                stack.enter_context(side.started(read=True))
                for process in side.processes.values():
                    threading.Thread(target=self._read, args=(number, process), daemon=True).start()
            for number in numbers:
                for row in self._lines_of(number):
                    self.sides[number].where.setdefault(row["node"], []).extend(row["pids"])
            yield
        for side in sides:
            side.where = {}

    def _turn(self, number: int, pair: int) -> Slice:
        side = self.sides[number]
        stop: dict[str, list[int]] = {}
        for other in self.sides:
            for node, processes in other.where.items() if other is not side else ():
                stop.setdefault(node, []).extend(processes)
        self._tell(side, json.dumps({"steps": side.steps, "stop": stop}))
        rows = self._lines_of(number)
        nodes = {row["node"]: row for row in rows}.values()  # its ranks see the same cores
        busy, own = sum(row["busy"] for row in nodes), sum(row["own"] for row in rows)
        waited = [row["waited"] for row in nodes]
        return Slice(
            pair,
            number,
            rows[0]["samples"],
            max(row["seconds"] for row in rows),
            max(0.0, busy - own),
            sum(row["steal"] for row in nodes),
            None if None in waited else sum(waited),
        )

    def _tell(self, side: Side, line: str) -> None:
        for process in side.processes.values():
            with suppress(BrokenPipeError):  # it has died, which is noticed
                process.stdin.write(f"{line}\n".encode())
                process.stdin.flush()

    def _read(self, number: int, process: subprocess.Popen) -> None:
        """Take what a program prints: lines for the launcher, and others, which go to the log."""
        with open(self.sides[number].log, "ab", buffering=0) as log:
            for line in process.stdout:
                if line.startswith(MARK):
                    self._said.put((number, json.loads(line.removeprefix(MARK))))
                else:
                    log.write(line)

    def _lines_of(self, number: int) -> list[dict]:
        """A line of each rank of a side, by rank, once all have said one. Raises Over."""
        side = self.sides[number]
        beats = Heartbeats(side)
        while len(side.lines) < side.count:
            try:
                of, line = self._said.get(timeout=LOOK_SECONDS)
                self.sides[of].lines.append(line)
            except queue.Empty:
                beats.look()
                self._look(side, beats)
        rows, side.lines = sorted(side.lines, key=lambda row: row["rank"]), []
        return rows

    def _look(self, side: Side, beats: Heartbeats) -> None:
        """Over when all are to end, one has failed, or a rank of ``side``, which has the turn,
        hangs or has left."""
        if self.asked():
            raise Over
        if any(each.failed() for each in self.sides):
            time.sleep(SETTLE_SECONDS)  # others may say why
            raise Over
        alive = side.alive()
        side.hung = beats.hung(alive, self.timeout) if alive else None
        if not alive or side.hung:
            raise Over
