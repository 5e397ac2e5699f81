"""Compare two programs in turns, restart by restart, until they are told apart (docs/verdicts.md).

As in a study's pairs: in each restart both are started anew and take turns of about a second, the
other one stopped meanwhile. In every second restart the first one runs beside itself (A/A), until
equal sides are shown to be equal, or not to be.
"""

from __future__ import annotations

import math
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from parbench.launch import turns
from parbench.launch.turns import LEAST_STEPS, PAIRS, Slice
from parbench.training.program import Program
from parbench.verdicts import pairs
from parbench.verdicts.pairs import EQUAL, Compared, Restart


@dataclass(frozen=True)
class Measured:
    """One restart: whether of A beside itself, its value and its slices."""

    beside_itself: bool
    restart: Restart
    slices: tuple[Slice, ...]


def compare(a: Program, b: Program, minutes: float, told: Callable[[str], None]) -> list[Measured]:
    """Compare ``a`` with ``b`` until the verdict and that on equal sides stand, or time is up.

    ``told``: gets a line after each restart. Raises Misbehaved.
    """
    until = time.monotonic() + 60 * minutes
    found: list[Measured] = []
    other_a = replace(a, label=f"{a.label} again")
    while True:
        checks = not _is_checked(found) and len(of(found, True).restarts) < len(
            of(found, False).restarts
        )
        begun = time.monotonic()
        if found and begun + _longest(found) > until:
            return found
        number = len(of(found, checks).restarts)
        measured = _restart(a, other_a if checks else b, number, checks)
        found.append(measured)
        told(line(measured, found))
        if _is_checked(found) and not of(found, False).series.undecided(EQUAL):
            return found


def of(found: list[Measured], beside_itself: bool) -> Compared:
    """Return the comparison of A with B, or of A with itself."""
    restarts = (each.restart for each in found if each.beside_itself == beside_itself)
    return Compared(tuple(restarts), (), ())


def line(measured: Measured, found: list[Measured]) -> str:
    """Return what a restart found, and all so far."""
    kind = "A beside itself" if measured.beside_itself else "B beside A"
    compared = of(found, measured.beside_itself)
    ratio = math.exp(measured.restart.value)
    return f"{kind}, restart {len(compared.restarts)}: {ratio:.3f} times as fast"


def _is_checked(found: list[Measured]) -> bool:
    equal = of(found, True)
    return equal.is_equal or equal.biased


def _longest(found: list[Measured]) -> float:
    """Return the seconds that the longest restart took."""
    return max(each.restart.seconds for each in found)


def _restart(a: Program, b: Program, number: int, beside_itself: bool) -> Measured:
    """Start both, measure pairs of slices until PAIRS are undisturbed, at most twice as many, and
    end both."""
    started = datetime.now(UTC)
    with tempfile.TemporaryDirectory(prefix="versus-") as name:
        folder = Path(name)
        # One after the other: each has the cores to itself until it waits in its first step.
        with a.started(folder):
            a.wait_for_step()
            a.send(signal.SIGSTOP)
            with b.started(folder):
                b.wait_for_step()
                b.send(signal.SIGSTOP)
                slices = tuple(_slices((a, b)))
    finished = datetime.now(UTC)
    return Measured(beside_itself, _value(number, slices, started, finished), slices)


def _slices(sides: tuple[Program, Program]) -> list[Slice]:
    steps = []
    for number, side in enumerate(sides):  # warm up, and see how long a step takes
        seconds = [_turn(side, number, LEAST_STEPS, -1).seconds for _ in range(2)][1]
        steps.append(turns.steps_of_slice(seconds / LEAST_STEPS))

    def turn(number: int, pair: int) -> Slice:
        return _turn(sides[number], number, steps[number], pair)

    return turns.interleaved(turn, len(sides), 2 * PAIRS)


def _turn(side: Program, number: int, steps: int, pair: int) -> Slice:
    turn, spent = side.turn(steps)
    others = max(0.0, spent.busy - spent.own)
    return Slice(pair, number, turn.samples, turn.seconds, others, spent.steal, spent.waited)


def _value(
    number: int, slices: tuple[Slice, ...], started: datetime, finished: datetime
) -> Restart:
    """Return the log of A's time for a sample over B's."""
    times: dict[int, dict[int, float]] = {}
    for each in slices:
        times.setdefault(each.pair, {})[each.side] = each.seconds / each.samples
    ratios = {pair: math.log(both[0] / both[1]) for pair, both in times.items()}
    disturbed = {each.pair for each in slices if each.disturbed}
    return pairs.restart_of(number, ratios, disturbed, math.inf, started, finished)
