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
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from parbench import machine
from parbench.files import read_json
from parbench.launch import ranks
from parbench.launch.ranks import Ended, Heartbeats, Program
from parbench.training import launched

MARK = launched.MARK.encode()
PAIRS = 4  # of slices of each side, in one restart
SLICE_SECONDS = 1.0
LEAST_STEPS = 4  # of a slice
# Of a slice: in which others used its cores, or the machine below took them away. Judged by what
# is no side's own doing, so that dropping a pair favours none.
DISTURBED = 0.05


@dataclass
class Side:
    """A side of a pair: the ``count`` ranks that ``programs`` start, with a folder of their own."""

    programs: Mapping[int, Program]
    count: int
    state: Path
    ended: Ended = field(default_factory=Ended)
    processes: dict[int, subprocess.Popen] = field(default_factory=dict)
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
    sides: list[Side], log: Path, timeout: float, asked: Callable[[], bool], apart: bool = False
) -> list[Slice]:
    """Let ``sides`` take their turns; none of their processes lives afterwards.

    Returns the slices; none where a side failed, and how it ``ended`` tells why.
    ``timeout``: seconds without a sign of life after which a rank is taken for hung; ``asked``
    says whether all shall end now. ``apart``: each turn is a run of its own, for sides that do not
    fit into memory together.
    """
    kills = machine.oom_kills()
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("", encoding="utf-8")
    lead = _Lead(sides, log, timeout, asked)
    slices: list[Slice] = []
    with suppress(Over):
        slices = lead.apart() if apart else lead.together()
    for side in sides:
        side.ended.words = side.ended.words or ranks.last_words(side.state)
        side.ended.kernel_killed = machine.oom_kills() > kills
    return slices


class _Lead:
    def __init__(self, sides: list[Side], log: Path, timeout: float, asked: Callable[[], bool]):
        self.sides, self.log, self.timeout, self.asked = sides, log, timeout, asked
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
                started = ranks.started(side.programs, self.log, read=True)
                side.processes = stack.enter_context(started)
                for process in side.processes.values():
                    threading.Thread(target=self._read, args=(number, process), daemon=True).start()
            try:
                for number in numbers:
                    for row in self._lines_of(number):
                        self.sides[number].where.setdefault(row["node"], []).extend(row["pids"])
                yield
            finally:
                for side in sides:
                    ranks.look_back(side.processes, side.ended, side.state, self.log)
                    side.where = {}
                    if not (side.ended.status or side.ended.words):
                        side.ended.task = None  # the log is of all sides: srun spoke of another's

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
        with open(self.log, "ab", buffering=0) as log:
            for line in process.stdout:
                if line.startswith(MARK):
                    self._said.put((number, json.loads(line.removeprefix(MARK))))
                else:
                    log.write(line)

    def _lines_of(self, number: int) -> list[dict]:
        """A line of each rank of a side, by rank, once all have said one. Raises Over."""
        side = self.sides[number]
        beats = Heartbeats(side.state, side.count)
        while len(side.lines) < side.count:
            try:
                of, line = self._said.get(timeout=ranks.LOOK_SECONDS)
                self.sides[of].lines.append(line)
            except queue.Empty:
                beats.look()
                self._look()
                self._look_for_hung(number, beats)
        rows, side.lines = sorted(side.lines, key=lambda row: row["rank"]), []
        return rows

    def _look(self) -> None:
        """Over when all are to end, or one has failed."""
        if self.asked():
            raise Over
        for side in self.sides:
            ranks.running(side.processes, side.ended)
            if side.ended.deaths or side.ended.status or ranks.last_words(side.state):
                time.sleep(ranks.SETTLE_SECONDS)  # others may say why
                raise Over

    def _look_for_hung(self, number: int, beats: Heartbeats) -> None:
        """Over when a rank of a side, which has the turn, hangs or has left."""
        side = self.sides[number]
        alive = ranks.running(side.processes, side.ended)
        if alive and -1 in alive:  # of srun's ranks only itself knows which have ended
            alive = set(range(side.count))
        side.ended.hung = beats.hung(alive, self.timeout) if alive else None
        if not alive or side.ended.hung:
            raise Over
