"""The rule of every verdict: an interval that may be looked at after each value (docs/verdicts.md).

A value is what one restart measured, or the difference of one seed: only these are independent.
Values, thresholds and margins have one unit; for ratios it is their logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

from parbench.verdicts.words import FAILS, FEWEST, HOLDS, TOO_CLOSE, UNDECIDED

ALPHA = 0.05
MOST = 10_000  # values; what takes more is not foreseen
PATIENCE = 50  # minutes
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
    one, other = np.triu_indices(values.shape[-1])
    return np.median((values[..., one] + values[..., other]) / 2, axis=-1)


def k(n: ArrayLike, alpha: float = ALPHA) -> float | np.ndarray:
    """Half the width of the interval of ``n`` values, in standard errors of their mean.

    The mean leaves it at any look from the 4th value on with a probability of at most ``alpha``
    (Lai, 1976; Wang and Ramdas, arXiv 2310.03722).
    """
    n = np.asarray(n, dtype=float)
    return np.sqrt((n - 1) * np.expm1(np.log(_b(alpha) * n) / n))[()]


@cache
def _b(alpha: float) -> float:
    """The constant of `k`, which makes the first look's share of ``alpha`` the right one."""
    t = stats.t(FEWEST - 1)
    a = optimize.brentq(lambda a: 2 * (t.sf(a) + a * t.pdf(a)) - alpha, 0, 1e6)
    return (1 + a**2 / (FEWEST - 1)) ** FEWEST / FEWEST


def interval(
    values: Iterable[float], alpha: float = ALPHA, resolution: float = 0.0
) -> Interval | None:
    """The interval of the values' mean; None below 4 values, which decide nothing.

    ``resolution``: the least step that is measured; the standard deviation is taken for no less.
    """
    values = tuple(values)
    if len(values) < FEWEST:
        return None
    mean, std = float(np.mean(values)), max(float(np.std(values, ddof=1)), resolution)
    half = float(k(len(values), alpha)) * std / math.sqrt(len(values))
    return Interval(len(values), mean, std, mean - half, mean + half)


# ---------------------------------------------------------------- verdicts


def within(found: Interval | None, region: Band) -> str:
    """Whether the mean lies between the ends of ``region``, of which one may be infinite: HOLDS,
    FAILS, UNDECIDED.
    """
    low, high = region
    if found is not None and low < found.low and found.high < high:
        return HOLDS
    outside = found is not None and (found.low > high or found.high < low)
    return FAILS if outside else UNDECIDED


def ratio_margin(share: float) -> Band:
    """The margin, of log ratios, of ratios within ``share``: 0.05 is 1 / 1.05 to 1.05."""
    return -math.log1p(share), math.log1p(share)


def of_claim(comparisons: Sequence[Callable[[float], str]], alpha: float = ALPHA) -> str:
    """The verdict of a claim of one or more comparisons, each of which gives its own at an alpha.

    It HOLDS where each of them does at ``alpha``. It FAILS where k of all n are against it at
    ``alpha`` * k / n, for any k: one clearly, or all of them together (Simes, 1986). So many
    comparisons do not refute a true claim by chance; those of one claim share a machine and often a
    baseline, and are not against each other.
    """
    number = len(comparisons)
    if all(verdict(alpha) == HOLDS for verdict in comparisons):
        return HOLDS
    for k in range(1, number + 1):
        said = [verdict(alpha * k / number) for verdict in comparisons]
        if said.count(FAILS) >= k:
            return FAILS
    return UNDECIDED


# ---------------------------------------------------------------- what a verdict takes


def needed(found: Interval, boundaries: Iterable[float], alpha: float = ALPHA) -> int | None:
    """With how many values the interval leaves the nearest boundary out, if the estimate stays.

    ``boundaries``: the threshold, or both ends of the margin. None where MOST do not suffice.
    """
    gap = min(abs(found.mean - boundary) for boundary in boundaries)
    n = np.arange(FEWEST, MOST + 1)
    enough = n[k(n, alpha) * found.std / np.sqrt(n) < gap]
    return int(enough[0]) if len(enough) else None


def outlook(found: Interval, boundaries: Iterable[float], seconds: float, unit: str) -> str:
    """What an undecided comparison takes, in a sentence; ``seconds``: the cost of a value."""
    n = needed(found, boundaries)
    if n is None or (n - found.n) * seconds > 60 * PATIENCE:
        return TOO_CLOSE
    minutes = math.ceil((n - found.n) * seconds / 60)
    time, more = (
        f"{number} {unit}" + "s" * (number != 1)
        for number, unit in ((minutes, "minute"), (n - found.n, unit))
    )
    return f"some {time} more ({more}) if the estimate stays"
