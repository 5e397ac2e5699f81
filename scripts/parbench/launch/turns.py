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
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
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
END_SECONDS = 30.0  # that ranks have to leave, once all is measured
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


def run(sides: list[Side], log: Path, timeout: float, asked: Callable[[], bool]) -> list[Slice]:
    """Let ``sides`` take their turns; none of their processes lives afterwards.

    Returns the slices; none where a side failed, and how it ``ended`` tells why.
    ``timeout``: seconds without a sign of life after which a rank is taken for hung; ``asked``
    says whether all shall end now.
    """
    kills = machine.oom_kills()
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("", encoding="utf-8")
    lead = _Lead(sides, log, timeout, asked)
    slices: list[Slice] = []
    with ExitStack() as stack, suppress(Over):
        for side in sides:
            side.processes = stack.enter_context(ranks.started(side.programs, log, read=True))
        try:
            slices = lead.all_turns()
        finally:
            for side in sides:
                ranks.look_back(side.processes, side.ended, side.state, log)
                if not (side.ended.status or side.ended.words):
                    side.ended.task = None  # the log is of all sides: srun spoke of another's
    for side in sides:
        side.ended.words = side.ended.words or ranks.last_words(side.state)
        side.ended.kernel_killed = machine.oom_kills() > kills
    return slices


class _Lead:
    def __init__(self, sides: list[Side], log: Path, timeout: float, asked: Callable[[], bool]):
        self.sides, self.log, self.timeout, self.asked = sides, log, timeout, asked
        self._said: queue.SimpleQueue[tuple[int, dict]] = queue.SimpleQueue()

    def all_turns(self) -> list[Slice]:
        """Warm up, then pairs of slices until enough of them were not disturbed. Raises Over."""
        slices: list[Slice] = []
        for number, side in enumerate(self.sides):
            for process in side.processes.values():
                threading.Thread(target=self._read, args=(number, process), daemon=True).start()
        for number, side in enumerate(self.sides):
            for row in self._lines_of(number):
                side.where.setdefault(row["node"], []).append(row["pid"])
        for number, side in enumerate(self.sides):
            self._turn(number, -1)
            seconds = self._turn(number, -1).seconds
            side.steps = max(LEAST_STEPS, math.ceil(SLICE_SECONDS / (seconds / LEAST_STEPS)))
        calm = pair = 0
        while calm < PAIRS and pair < 2 * PAIRS:
            order = list(range(len(self.sides)))
            made = [self._turn(n, pair) for n in (order if pair % 4 in (0, 3) else order[::-1])]
            slices += made
            calm += not any(each.disturbed for each in made)
            pair += 1
        self._end()
        return slices

    def _end(self) -> None:
        for side in self.sides:
            self._tell(side, "")
        deadline = time.monotonic() + END_SECONDS
        while any(ranks.running(side.processes, side.ended) for side in self.sides):
            if time.monotonic() > deadline:
                raise Over
            self._look()
            time.sleep(ranks.LOOK_SECONDS)

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
