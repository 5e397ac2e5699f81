"""The rule of every verdict: an interval that may be looked at after each value (docs/verdicts.md).

A value is what one restart measured, or the difference of one seed: only these are independent.
Values, thresholds and margins share one unit; ratios are given by their logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

from parbench.verdicts.words import FEWEST, TOO_CLOSE, UNDECIDED

ALPHA = 0.05
HOLDS, FAILS = "holds", "fails"  # or UNDECIDED: what an interval says of a region
MOST = 10_000  # values; beyond that there is no forecast
Band = tuple[float, float]


@dataclass(frozen=True)
class Interval:
    """The mean of ``n`` values, their standard deviation, and the ends of its interval."""

    n: int
    mean: float
    std: float
    low: float
    high: float


def hodges_lehmann(values: ArrayLike) -> float | np.ndarray:
    """Estimate the centre of values, along the last axis, by the median of all pairwise means.

    Each value's mean with itself is among them (Hodges and Lehmann, 1963).
    """
    values = np.asarray(values, dtype=float)
    first, second = np.triu_indices(values.shape[-1])
    return np.median((values[..., first] + values[..., second]) / 2, axis=-1)


def k(n: ArrayLike, alpha: float = ALPHA) -> float | np.ndarray:
    """Return half the width of the interval of ``n`` values, in standard errors of their mean.

    The interval excludes the true mean at any look from the 4th value on with probability at most
    ``alpha`` (Lai, 1976; Wang and Ramdas, arXiv 2310.03722).
    """
    n = np.asarray(n, dtype=float)
    return np.sqrt((n - 1) * np.expm1(np.log(_b(alpha) * n) / n))[()]


@cache
def _b(alpha: float) -> float:
    """Return the constant b of `k`, set at the first look to keep the error within ``alpha``."""
    t = stats.t(FEWEST - 1)
    a = optimize.brentq(lambda a: 2 * (t.sf(a) + a * t.pdf(a)) - alpha, 0, 1e6)
    return (1 + a**2 / (FEWEST - 1)) ** FEWEST / FEWEST


def interval(
    values: Iterable[float], alpha: float = ALPHA, resolution: float = 0.0
) -> Interval | None:
    """Return the interval of the values' mean; None below 4 values, which decide nothing.

    ``resolution``: the smallest measurable step, which is the least standard deviation assumed.
    """
    values = tuple(values)
    if len(values) < FEWEST:
        return None
    mean, std = float(np.mean(values)), max(float(np.std(values, ddof=1)), resolution)
    half = float(k(len(values), alpha)) * std / math.sqrt(len(values))
    return Interval(len(values), mean, std, mean - half, mean + half)


# ---------------------------------------------------------------- verdicts


def within(found: Interval | None, region: Band) -> str:
    """Return whether the mean lies within ``region``, one of whose ends may be infinite: HOLDS,
    FAILS or UNDECIDED.
    """
    low, high = region
    if found is not None and low < found.low and found.high < high:
        return HOLDS
    outside = found is not None and (found.low > high or found.high < low)
    return FAILS if outside else UNDECIDED


def ratio_margin(share: float) -> Band:
    """Return the margin of log ratios for ratios within ``share``: 0.05 is 1 / 1.05 to 1.05."""
    return -math.log1p(share), math.log1p(share)


def of_claim(comparisons: Sequence[Callable[[float], str]], alpha: float = ALPHA) -> str:
    """Return the verdict on a claim of one or more comparisons, which give theirs for an alpha.

    It HOLDS if each comparison does at ``alpha``. It FAILS if, for any k, k of all n fail at
    ``alpha`` * k / n: one clearly, or all of them together (Simes, 1986). Thus many comparisons do
    not refute a true claim by chance; those of one claim share a machine and often a baseline, so
    they are not negatively correlated.
    """
    n = len(comparisons)
    if all(comparison(alpha) == HOLDS for comparison in comparisons):
        return HOLDS
    for k in range(1, n + 1):
        verdicts = [comparison(alpha * k / n) for comparison in comparisons]
        if verdicts.count(FAILS) >= k:
            return FAILS
    return UNDECIDED


# ---------------------------------------------------------------- what a verdict takes


def needed(found: Interval, boundaries: Iterable[float], alpha: float = ALPHA) -> int | None:
    """Return how many values exclude the nearest boundary from the interval, if the estimate stays.

    ``boundaries``: the threshold, or both ends of the margin. None if MOST are not enough.
    """
    gap = min(abs(found.mean - boundary) for boundary in boundaries)
    n = np.arange(FEWEST, MOST + 1)
    enough = n[k(n, alpha) * found.std / np.sqrt(n) < gap]
    return int(enough[0]) if len(enough) else None


def outlook(
    found: Interval,
    boundaries: Iterable[float],
    seconds: float,
    unit: str,
    alpha: float = ALPHA,
) -> str:
    """Say what an undecided comparison takes to decide; ``seconds``: the cost of one value."""
    n = needed(found, boundaries, alpha)
    if n is None:
        return TOO_CLOSE
    minutes = math.ceil((n - found.n) * seconds / 60)
    duration = (minutes, "minute") if minutes <= 120 else (math.ceil(minutes / 60), "hour")
    time, more = (
        f"{number:,} {unit}" + "s" * (number != 1)
        for number, unit in (duration, (n - found.n, unit))
    )
    return f"some {time} more ({more}) if the estimate stays"
