"""Time programs that take turns, and make rows of the times: medians, ratios and intervals."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass

from scipy.stats import quantile_test
from tqdm import tqdm

Pairs = list[tuple[float, float]]


@dataclass
class BenchRow:
    """One line of the result: ``values`` in ``unit``, "x" for ratios."""

    what: str
    unit: str
    values: list[float]

    def result(self) -> dict:
        """Return the row for results/bench.json.

        ``low`` and ``high`` bound the median by order statistics with 95 % confidence, exact for
        any continuous distribution. They are None below 6 values, where even the extremes do not
        reach it.
        """
        interval = quantile_test(self.values, q=0, p=0.5).confidence_interval(0.95)
        low, high = (None if math.isnan(end) else float(end) for end in interval)
        about = {"what": self.what, "unit": self.unit, "median": statistics.median(self.values)}
        return {**about, "low": low, "high": high, "values": self.values}


def take_turns(contenders: dict[str, Callable[[], float]], pairs: int) -> dict[str, Pairs]:
    """Let ``contenders``, which return seconds, take turns; return ``pairs`` pairs for each.

    A pair is two turns, there and back (A B B A), so that a steady drift affects all alike. The
    order changes from pair to pair, through all permutations. First, each has an unmeasured turn.
    """
    for work in contenders.values():
        work()
    orders = list(itertools.permutations(contenders))
    random.Random(0).shuffle(orders)  # noqa: S311  (no secret)
    pairs_by_name: dict[str, Pairs] = {name: [] for name in contenders}
    for pair in tqdm(range(pairs), unit="pair", disable=not sys.stderr.isatty()):
        order = orders[pair % len(orders)]
        outward = {name: contenders[name]() for name in order}
        for name in reversed(order):
            pairs_by_name[name].append((outward[name], contenders[name]()))
    return pairs_by_name


def means(pairs: Pairs) -> list[float]:
    """Return the mean of each pair."""
    return [sum(pair) / 2 for pair in pairs]


def ratio(what: str, above: Pairs, below: Pairs) -> BenchRow:
    """Return the row of the seconds of ``above`` over those of ``below``, pair by pair."""
    ratios = [sum(one) / sum(other) for one, other in zip(above, below, strict=True)]
    return BenchRow(what, "x", ratios)


def line(row: dict) -> str:
    """Return a row's result as text; without an interval, with the number of values."""
    spread = f"n={len(row['values'])}"
    if row["low"] is not None:
        spread = f"{row['low']:.4g} to {row['high']:.4g}"
    centre = row["mean" if "mean" in row else "median"]
    verdict = f", {row['verdict']}" if "verdict" in row else ""
    return f"  {row['what']}: {centre:.4g} {row['unit']} ({spread}){verdict}"
