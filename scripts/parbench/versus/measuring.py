"""Compare two programs in turns, restart by restart, until there is a verdict (docs/verdicts.md).

As in a study's pairs, each restart starts both programs again, and they take turns of a tenth of a
second while the other one is stopped. In every second restart the first one runs beside itself
(an A/A pair), until that is shown to be equal, or biased. Of two equal programs, the one that is
started later and has the second turn can come out faster; they change places from one restart to
the next, so that this cancels.
"""

from __future__ import annotations

import math
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from parbench.launch import interleaving
from parbench.launch.interleaving import PAIRS, TimedSlice, Turn
from parbench.training.program import Program
from parbench.verdicts import pairs
from parbench.verdicts.pairs import EQUAL, Compared, Restart
from parbench.verdicts.terms import FEWEST

RESTARTS = 2 * FEWEST  # the fewest that decide: of B, each with its A/A
Kind = Literal["B beside A", "A beside itself"]
KINDS: dict[bool, Kind] = {False: "B beside A", True: "A beside itself"}


@dataclass(frozen=True)
class MeasuredRestart:
    """One restart: whether it is of A beside itself, its value and its slices."""

    beside_itself: bool
    restart: Restart
    slices: tuple[TimedSlice, ...]


def compare(
    a: Program,
    b: Program,
    minutes: float,
    report: Callable[[str], None],
    earlier: Sequence[MeasuredRestart] = (),
) -> list[MeasuredRestart]:
    """Compare ``a`` with ``b`` until the verdict is decided and A beside itself checked, or for
    ``minutes``; return the ``earlier`` restarts and the new ones. If the earlier ones are decisive,
    new ones narrow the interval until time is up.

    ``report``: called with a line of text whenever something begins or ends, and with the reason
    for the end. Raises ProgramError.
    """
    until = time.monotonic() + 60 * minutes
    found = list(earlier)
    other_a = replace(a, label=f"{a.label}'s second copy")
    narrows = bool(found) and is_decided(found) and not of(found, True).biased
    while narrows or not is_decided(found):
        checks = not _is_checked(found) and len(of(found, True).restarts) < len(
            of(found, False).restarts
        )
        if found and time.monotonic() + _longest(found) > until:
            report(_out_of_time(found, minutes))
            return found
        number = len(of(found, checks).restarts)
        report(f"{KINDS[checks]}, restart {number + 1}:")
        measured = _restart(a, other_a if checks else b, number, checks, report)
        found.append(measured)
        names = (f"{a.label}'s second copy", "the first") if checks else (b.label, a.label)
        report(f"  {_line(measured, *names)}")
    biased = of(found, True).biased
    why = (
        "A beside itself is biased"
        if biased
        else "There is a verdict, and A beside itself is equal"
    )
    report(f"{why}: nothing more to measure")
    return found


def of(found: list[MeasuredRestart], beside_itself: bool) -> Compared:
    """Return the comparison of A with B, or of A with itself."""
    restarts = (each.restart for each in found if each.beside_itself == beside_itself)
    return Compared(tuple(restarts), (), ())


def _line(measured: MeasuredRestart, one: str, other: str) -> str:
    """Return a sentence on the result of a restart of ``one`` and ``other``."""
    compared = Compared((measured.restart,), (), ())
    ratio = (
        f"{one} is {math.exp(measured.restart.value):.3f} times as fast as {other} in this restart"
    )
    return "; ".join(filter(None, (ratio, pairs.caveats(compared))))


def _out_of_time(found: list[MeasuredRestart], minutes: float) -> str:
    """Return why no further restart begins, and how many there are of those that deciding takes."""
    report = (
        f"Ends here: another restart takes up to {_longest(found):.0f} s, which is more than is "
        f"left of --minutes {minutes:g}"
    )
    if len(found) >= RESTARTS:
        return report
    return f"{report}; it has {len(found)} of at least {RESTARTS} restarts that deciding takes"


def minutes_left(found: list[MeasuredRestart]) -> int:
    """Return the minutes that the fewest restarts that can decide take in addition to ``found``, at
    least one restart, each as long as the longest so far."""
    return math.ceil(max(1, RESTARTS - len(found)) * _longest(found) / 60)


def is_decided(found: list[MeasuredRestart]) -> bool:
    """Return whether the verdict is decided and A beside itself is equal, or the latter is
    biased."""
    equal = of(found, True)
    return equal.biased or (equal.is_equal and not of(found, False).series.undecided(EQUAL))


def _is_checked(found: list[MeasuredRestart]) -> bool:
    equal = of(found, True)
    return equal.is_equal or equal.biased


def _longest(found: list[MeasuredRestart]) -> float:
    """Return the seconds that the longest restart took."""
    return max(each.restart.seconds for each in found)


def _restart(
    a: Program, b: Program, number: int, beside_itself: bool, report: Callable[[str], None]
) -> MeasuredRestart:
    """Start both programs, measure pairs of slices until PAIRS are undisturbed, at most twice as
    many, end both programs, and return the restart. Raises ProgramError."""
    started = datetime.now(UTC)
    swapped = number % 2 == 1
    first, second = (b, a) if swapped else (a, b)
    with tempfile.TemporaryDirectory(prefix="versus-") as name:
        folder = Path(name)
        # Started one after the other, so that each has the cores to itself until its first step.
        with first.started(folder):
            report(f"  waits for the first step of {first.label}")
            first.wait_for_step()
            first.send(signal.SIGSTOP)
            with second.started(folder):
                report(f"  waits for the first step of {second.label}")
                second.wait_for_step()
                second.send(signal.SIGSTOP)
                report("  measures turns")
                slices = tuple(_slices((first, second)))
    if swapped:
        slices = tuple(replace(each, side=1 - each.side) for each in slices)
    finished = datetime.now(UTC)
    return MeasuredRestart(beside_itself, value_of(number, slices, started, finished), slices)


def _slices(sides: tuple[Program, Program]) -> list[TimedSlice]:
    def turn(number: int, steps: int) -> Turn:
        taken, spent = sides[number].turn(steps)
        others = spent.busy - spent.own
        return Turn(taken.samples, taken.seconds, others, spent.steal, spent.waited)

    steps, count = interleaving.warmed_up(turn, range(len(sides)), interleaving.TURN_SECONDS)
    return interleaving.interleaved(
        lambda number: turn(number, steps[number]), len(sides), count, 2 * PAIRS
    )


def value_of(
    number: int, slices: tuple[TimedSlice, ...], started: datetime, finished: datetime
) -> Restart:
    """Return the restart, whose value is the log of A's time per sample over B's."""
    times: dict[int, dict[int, float]] = {}
    for each in slices:
        times.setdefault(each.pair, {})[each.side] = each.seconds / each.samples
    ratios = {pair: math.log(both[0] / both[1]) for pair, both in times.items()}
    disturbed = {each.pair for each in slices if each.disturbed}
    return pairs.restart_of(number, ratios, disturbed, math.inf, started, finished)
