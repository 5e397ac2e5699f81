"""Time programs that take turns, and make rows of the times, with intervals as in verdicts."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tqdm import tqdm

from parbench.verdicts.pairs import EQUAL
from parbench.verdicts.sequential import Series

Pairs = list[tuple[float, float]]


@dataclass(frozen=True)
class BenchRow:
    """One line of the result: a ``series`` of values in ``unit`` ("x" for ratios), and for ratios
    their ``reading``: more than 1, less, equal or undecided."""

    what: str
    unit: str
    series: Series
    reading: str = ""

    def result(self) -> dict:
        """Return the row for results/bench.json: the mean (geometric for ratios), its 95 % interval
        as in verdicts (None below 4 values), the reading and the values."""
        series = self.series
        ends = {"low": series.ci_low, "high": series.ci_high, "reading": self.reading}
        about = {"what": self.what, "unit": self.unit, "mean": series.mean}
        return {**about, **ends, "values": series.points}


def take_turns(contenders: dict[str, Callable[[], float]], pairs: int) -> dict[str, Pairs]:
    """Let ``contenders``, which return seconds, take turns; return ``pairs`` pairs for each.

    A pair is two turns, in one order and then the reverse (A B B A), so that a steady drift affects
    all alike. Before that, each has one turn that is not measured.
    """
    for work in contenders.values():
        work()
    pairs_by_name: dict[str, Pairs] = {name: [] for name in contenders}
    for _ in tqdm(range(pairs), unit="pair", disable=not sys.stderr.isatty()):
        outward = {name: work() for name, work in contenders.items()}
        for name in reversed(contenders):
            pairs_by_name[name].append((outward[name], contenders[name]()))
    return pairs_by_name


def seconds(what: str, pairs: Pairs) -> BenchRow:
    """Return the row of the mean of each of ``pairs``, in seconds."""
    return BenchRow(what, "s", _series(sum(pair) / 2 for pair in pairs))


def ratio(what: str, above: Pairs, below: Pairs) -> BenchRow:
    """Return the row of the seconds of ``above`` over those of ``below``, pair by pair."""
    both = list(zip(above, below, strict=True))
    logs = (math.log(sum(one) / sum(other)) for one, other in both)
    cost = statistics.fmean(sum(one) + sum(other) for one, other in both)
    series = _series(logs, logs=True, cost=cost)
    return BenchRow(what, "x", series, series.reading(EQUAL, "more than 1", "less than 1"))


def _series(values: Iterable[float], logs: bool = False, cost: float = 0.0) -> Series:
    return Series(dict(enumerate(values)), "pairs", logs, cost)


def line(row: BenchRow) -> str:
    """Return a row as text; without an interval, with the number of values."""
    series = row.series
    spread = f"n={series.seeds}"
    if series.ci_low is not None:
        spread = f"{series.ci_low:.4g} to {series.ci_high:.4g}"
    reading = f", {row.reading}" if row.reading else ""
    return f"  {row.what}: {series.mean:.4g} {row.unit} ({spread}){reading}"
