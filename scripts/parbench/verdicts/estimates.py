"""Numbers over the seeds of a group: means, intervals, the noise floor (docs/verdicts.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy import stats  # scikit-learn, which parbench depends on, brings it

from parbench.verdicts.words import TRIM_FROM, too_few

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """Numbers over ``n`` seeds, or ``of`` restarts of pairs; NaN where there are too few."""

    n: int
    mean: float = math.nan
    std: float = math.nan
    ci_low: float = math.nan
    ci_high: float = math.nan
    min: float = math.nan
    max: float = math.nan
    of: str = "seeds"

    @property
    def too_few(self) -> str:
        """Why they decide nothing; empty where they are enough."""
        return too_few(self.n, self.of)

    @property
    def seeds(self) -> int:
        """How many there are."""
        return self.n

    @property
    def half_width(self) -> float:
        """Half the width of the confidence interval."""
        return (self.ci_high - self.ci_low) / 2


def estimate(values: Iterable[float], *, trim: bool = False) -> Estimate:
    """Mean, sample standard deviation, 95 % t-interval of the mean, minimum and maximum.

    With ``trim`` and at least five values, the mean leaves out the smallest and the largest one and
    the interval is Tukey and McLaughlin's for a trimmed mean; the standard deviation, minimum and
    maximum are always those of all values.
    """
    ordered = np.sort(np.asarray(list(values), dtype=float))
    n = len(ordered)
    if n == 0:
        return Estimate(0)
    mean, low, high = float(ordered.mean()), float(ordered[0]), float(ordered[-1])
    if n == 1:
        return Estimate(1, mean, min=low, max=high)
    standard_error, freedom = ordered.std(ddof=1) / math.sqrt(n), n - 1
    if trim and n >= TRIM_FROM:
        winsorised = np.clip(ordered, ordered[1], ordered[-2])
        mean = float(ordered[1:-1].mean())
        standard_error = winsorised.std(ddof=1) / ((1 - 2 / n) * math.sqrt(n))
        freedom = n - 3
    half = float(_t_quantile(freedom) * standard_error)
    return Estimate(n, mean, float(ordered.std(ddof=1)), mean - half, mean + half, low, high)


def noise_floor(seconds: Iterable[float]) -> Estimate:
    """Ratios of the training times of runs that differ in nothing but the seed: what 1 looks like.

    Over all ordered pairs (i, j), i != j, of the n runs, so that every ratio stands beside its
    inverse: mean, standard deviation, minimum and maximum of the ratios. The interval is the one
    in which a single such ratio lies with 95 %: exp(-k) to exp(k), k = t(n - 1) * sqrt(2) * s,
    s being the sample standard deviation of the logarithms of the times.
    """
    times = np.asarray(list(seconds), dtype=float)
    n = len(times)
    if n < 2:
        return Estimate(n)
    pairs = ~np.eye(n, dtype=bool)
    ratios = (times[:, None] / times[None, :])[pairs]
    # Taking every pair in both directions makes this mean square of the log ratios exactly
    # 2 s^2, s^2 being the unbiased variance: the n(n-1) pairs need no further correction.
    half = float(_t_quantile(n - 1) * math.sqrt(np.mean(np.log(ratios) ** 2)))
    return Estimate(
        n,
        float(ratios.mean()),
        float(ratios.std()),
        math.exp(-half),
        math.exp(half),
        float(ratios.min()),
        float(ratios.max()),
    )


def _t_quantile(freedom: int) -> float:
    return stats.t.ppf((1 + CONFIDENCE) / 2, freedom)


def at_most(value: float, bound: float) -> bool:
    """Whether ``value <= bound``: the last digits of a float decide nothing (0.84 - 0.83)."""
    return value <= bound or math.isclose(value, bound, rel_tol=1e-9)
