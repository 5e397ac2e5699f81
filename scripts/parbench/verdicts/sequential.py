"""The rule of every verdict: an interval that may be looked at after each value (docs/verdicts.md).

A value is what one restart measured, or the difference of one seed: only these are independent.
Values, thresholds and margins share one unit; ratios are given by their logarithms.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

# scipy has no type stubs.
from scipy import optimize, stats  # pyright: ignore[reportMissingTypeStubs]

from parbench.verdicts.terms import FEWEST, TOO_CLOSE, UNDECIDED, too_few

ALPHA = 0.05
HOLDS, FAILS = "holds", "fails"  # or UNDECIDED: what an interval says of a region
IMAGES = 3  # of the test set; scores that differ by at most so many are always equal
MOST = 10_000  # values; beyond that there is no forecast
Band = tuple[float, float]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """The mean of ``n`` values, their standard deviation, and the ends of its interval."""

    n: int
    mean: float
    std: float
    low: float
    high: float


def hodges_lehmann(values: Sequence[float]) -> float:
    """Estimate the center of values by the median of all pairwise means.

    Each value's mean with itself is among them (Hodges and Lehmann, 1963).
    """
    return float(centers(np.asarray(values, dtype=float)))


def centers(values: Floats) -> Floats:
    """Return what ``hodges_lehmann`` estimates of each row: of ``values`` along the last axis."""
    first, second = np.triu_indices(values.shape[-1])
    return np.asarray(np.median((values[..., first] + values[..., second]) / 2, axis=-1))


def k(n: ArrayLike, alpha: float = ALPHA) -> Floats:
    """Return half the width of the interval of ``n`` values, in standard errors of their mean.

    The interval excludes the true mean at any look from the 4th value on with probability at most
    ``alpha`` (Lai, 1976; Wang and Ramdas, arXiv 2310.03722).
    """
    counts = np.asarray(n, dtype=float)
    return np.asarray(np.sqrt((counts - 1) * np.expm1(np.log(_b(alpha) * counts) / counts)))


@cache
def _b(alpha: float) -> float:
    """Return the constant b of `k`, set at the first look to keep the error within ``alpha``."""
    t, find_root = cast(Any, stats.t(FEWEST - 1)), cast(Any, optimize.brentq)

    def error(a: float) -> float:
        return 2 * float(t.sf(a) + a * t.pdf(a)) - alpha

    a = float(find_root(error, 0, 1e6))
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
    low, high = map(float, ends(len(values), mean, std, alpha))
    return Interval(len(values), mean, std, low, high)


def ends(
    n: ArrayLike, mean: ArrayLike, std: ArrayLike, alpha: float = ALPHA
) -> tuple[np.ndarray, np.ndarray]:
    """Return both ends of the interval of ``n`` values; of arrays, the ends of every interval."""
    half = k(n, alpha) * np.asarray(std) / np.sqrt(n)
    return np.asarray(mean) - half, np.asarray(mean) + half


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
    """Return how many values in all, including those already measured, it takes to exclude the
    nearest boundary from the interval, if the estimate stays.

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
    """Return what deciding an undecided comparison takes; ``seconds``: the cost of one value."""
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


# ---------------------------------------------------------------- the values of a verdict


@dataclass(frozen=True)
class Series:
    """Values that count as independent, by the number of the seed or restart.

    ``of``: what each value comes from, `seeds` or `restarts` (the property ``seeds`` is the number
    of values in either case);
    ``logs``: whether they are logs of ratios, else numbers or differences as they are; ``cost``:
    seconds that one more takes; ``resolution``: the smallest measurable step; ``reasons``: why some
    are missing; ``partial``: True if some values are missing, so that no mean is given;
    ``drifts``: whether they rise or fall with time.
    """

    values: Mapping[int, float]
    of: str = "seeds"
    logs: bool = False
    cost: float = 0.0
    resolution: float = 0.0
    reasons: tuple[str, ...] = ()
    partial: bool = False
    drifts: bool = False

    def shown(self, value: float) -> float:
        """Return a value, or an end of an interval, as a reader sees it."""
        return math.exp(value) if self.logs else value

    @property
    def points(self) -> list[float]:
        """The values as a reader sees them."""
        return list(map(self.shown, self.values.values()))

    def interval(self, alpha: float = ALPHA) -> Interval | None:
        """Return the interval of their mean; None if there are too few."""
        return interval(self.values.values(), alpha, self.resolution)

    # As tables and reports show them; None if there are too few values, or no mean.

    @property
    def seeds(self) -> int:
        """The number of values, whether of seeds or of restarts (``of``)."""
        return len(self.values)

    @property
    def too_few(self) -> str:
        """Why they decide nothing; empty if they are enough."""
        return too_few(self.seeds, self.of)

    @property
    def mean(self) -> float | None:
        """The mean; for ratios, the geometric mean."""
        has_mean = self.values and not self.partial
        return self.shown(statistics.fmean(self.values.values())) if has_mean else None

    @property
    def known_mean(self) -> float:
        """The mean. Raises ValueError if there is none."""
        if self.mean is None:
            raise ValueError("there is no mean")
        return self.mean

    @property
    def outer(self) -> tuple[float, float]:
        """The ends of the interval or, of too few values, of their range. Raises ValueError without
        values."""
        return self.ends or (min(self.points), max(self.points))

    @property
    def std(self) -> float | None:
        """The sample standard deviation."""
        return statistics.stdev(self.points) if self.seeds > 1 and not self.partial else None

    @property
    def ends(self) -> tuple[float, float] | None:
        """The ends of the interval."""
        found = None if self.partial else self.interval()
        return found and (self.shown(found.low), self.shown(found.high))

    @property
    def ci_low(self) -> float | None:
        """The lower end of the interval."""
        return self.ends[0] if self.ends else None

    @property
    def ci_high(self) -> float | None:
        """The upper end of the interval."""
        return self.ends[1] if self.ends else None

    @property
    def min(self) -> float | None:
        """The smallest value."""
        return min(self.points, default=None)

    @property
    def max(self) -> float | None:
        """The largest value."""
        return max(self.points, default=None)

    def times(self, factor: float) -> Series:
        """Return the ratios multiplied by ``factor``."""
        values = {n: value + math.log(factor) for n, value in self.values.items()}
        return replace(self, values=values)

    def inverse(self) -> Series:
        """Return the ratios, or differences, with the two sides swapped."""
        return replace(self, values={n: -value for n, value in self.values.items()})

    def beside(self, other: Series) -> Series:
        """Return this ratio over ``other``, or difference minus it, where both have a value."""
        shared = [n for n in self.values if n in other.values]
        return replace(
            self,
            values={n: self.values[n] - other.values[n] for n in shared},
            cost=self.cost + other.cost,
            reasons=tuple(dict.fromkeys([*self.reasons, *other.reasons])),
            drifts=self.drifts or other.drifts,
        )

    def margin(self, share: float) -> Band:
        """Return the margin within which two are equal: ``share`` of a ratio or, for scores, that
        difference but at least three test images."""
        if self.logs:
            return ratio_margin(share)
        share = max(share, IMAGES * self.resolution)
        return -share, share

    def reading(self, share: float, more: str, less: str) -> str:
        """Return where the whole interval lies: equal within ``share``, else ``more`` or ``less``
        than 1 (ratios) or 0; if undecided, what it takes."""
        interval, margin = self.interval(), self.margin(share)
        boundaries = self.undecided(share)
        if boundaries or interval is None:
            return f"{UNDECIDED}: {self.outlook(boundaries)}"
        if within(interval, margin) == HOLDS:
            return f"equal within {share:.0%}" if self.logs else f"equal within {margin[1]:.2g}"
        return more if interval.low > 0 else less

    def undecided(self, share: float) -> tuple[float, ...]:
        """Return the boundaries that more values may exclude: no difference, or the ends of the
        margin, whichever are farther from the estimate. Empty if decided."""
        interval, margin = self.interval(), self.margin(share)
        above = within(interval, (0.0, math.inf))
        if above != UNDECIDED or within(interval, margin) == HOLDS:
            return ()
        return margin if interval and abs(interval.mean) < margin[1] / 2 else (0.0,)

    def outlook(self, boundaries: tuple[float, ...], alpha: float = ALPHA) -> str:
        """Return what it takes for the interval to exclude ``boundaries``."""
        if (found := self.interval()) is None:
            return self.too_few
        if self.drifts:
            return f"what it would take is unknown, since the {self.of} drift"
        return outlook(found, boundaries, self.cost, self.of.rstrip("s"), alpha)


def numbered(values: Iterable[float]) -> Series:
    """Return a series of values, numbered from 0."""
    return Series(dict(enumerate(values)))
