"""Programs that take turns, and the rows of what they needed: medians, ratios and intervals."""

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


def interval(values: list[float]) -> dict:
    """{n, median, low, high} of ``values``.

    ``low`` and ``high`` bound the median by order statistics with 95 % confidence, exact for any
    continuous distribution. They are None below 6 values, where not even the extremes reach it.
    """
    found = quantile_test(values, q=0, p=0.5).confidence_interval(0.95)
    low, high = (None if math.isnan(end) else float(end) for end in found)
    return {"n": len(values), "median": statistics.median(values), "low": low, "high": high}


@dataclass
class Row:
    """One line of the result: ``values`` in ``unit``, "x" for ratios.

    It passes where the median is ``at_most`` so much, or the interval ``reaches`` so much.
    """

    what: str
    unit: str
    values: list[float]
    at_most: float | None = None
    reaches: float | None = None

    def result(self) -> dict:
        """The row as results/bench.json holds it."""
        found, bound, verdict = interval(self.values), "", ""
        if self.at_most is not None:
            bound = f"at most {self.at_most:g}"
            verdict = "pass" if found["median"] <= self.at_most else "short"
        elif self.reaches is not None:
            bound, verdict = f"interval reaches {self.reaches:g}", "undecided"
            if found["high"] is not None:
                verdict = "pass" if found["high"] >= self.reaches else "short"
        row = {"what": self.what, "unit": self.unit, "bound": bound, "verdict": verdict}
        return {**row, **found, "values": self.values}


def take_turns(contenders: dict[str, Callable[[], float]], pairs: int) -> dict[str, Pairs]:
    """Let ``contenders``, which return seconds, take turns: ``pairs`` pairs of two for each.

    Each pair is there and back (A B B A), so that a steady drift falls on all alike. The order
    changes from pair to pair, through all there are. One turn of each comes first, unmeasured.
    """
    for work in contenders.values():
        work()
    orders = list(itertools.permutations(contenders))
    random.Random(0).shuffle(orders)  # noqa: S311  (no secret)
    found: dict[str, Pairs] = {name: [] for name in contenders}
    for pair in tqdm(range(pairs), unit="pair", disable=not sys.stderr.isatty()):
        order = orders[pair % len(orders)]
        there = {name: contenders[name]() for name in order}
        for name in reversed(order):
            found[name].append((there[name], contenders[name]()))
    return found


def means(pairs: Pairs) -> list[float]:
    """The mean of each pair."""
    return [sum(pair) / 2 for pair in pairs]


def ratio(what: str, above: Pairs, below: Pairs, **bound: float) -> Row:
    """The seconds of ``above`` over those of ``below``, pair by pair."""
    ratios = [sum(one) / sum(other) for one, other in zip(above, below, strict=True)]
    return Row(what, "x", ratios, **bound)


def table(results: list[dict]) -> str:
    """Rows as aligned text; without an interval, how many values there are."""
    lines = [("", "median", "95 % interval", "bound", "")]
    for row in results:
        spread = f"n={row['n']}" if row["low"] is None else f"{row['low']:.4g} to {row['high']:.4g}"
        median = f"{row['median']:.4g} {row['unit']}"
        lines.append((row["what"], median, spread, row["bound"], row["verdict"]))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
