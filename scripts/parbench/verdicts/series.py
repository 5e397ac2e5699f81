"""The values that a verdict rests on: one for each seed or restart (docs/verdicts.md)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from parbench.verdicts import sequential
from parbench.verdicts.sequential import ALPHA, HOLDS, Band, Interval
from parbench.verdicts.words import UNDECIDED, too_few

IMAGES = 3  # of the test set; scores within so many are always equal


@dataclass(frozen=True)
class Series:
    """Values that count as independent, by the number of the seed or restart.

    ``logs``: whether they are logs of ratios, else numbers or differences as they are; ``cost``:
    seconds that one more takes; ``resolution``: the smallest measurable step; ``reasons``: why some
    are missing; ``partial``: whether there is no mean, since it would leave out those missing.
    """

    values: Mapping[int, float]
    of: str = "seeds"
    logs: bool = False
    cost: float = 0.0
    resolution: float = 0.0
    reasons: tuple[str, ...] = ()
    partial: bool = False

    def shown(self, value: float) -> float:
        """Return a value, or an end of an interval, as a reader sees it."""
        return math.exp(value) if self.logs else value

    @property
    def points(self) -> list[float]:
        """The values as a reader sees them."""
        return list(map(self.shown, self.values.values()))

    def interval(self, alpha: float = ALPHA) -> Interval | None:
        """Return the interval of their mean; None if there are too few."""
        return sequential.interval(self.values.values(), alpha, self.resolution)

    # As tables and reports show them; None if there are too few values, or no mean.

    @property
    def seeds(self) -> int:
        """The number of values."""
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
    def std(self) -> float | None:
        """The sample standard deviation."""
        return statistics.stdev(self.points) if self.seeds > 1 and not self.partial else None

    @property
    def ci_low(self) -> float | None:
        """The lower end of the interval."""
        return self.shown(self.interval().low) if self._has_interval else None

    @property
    def ci_high(self) -> float | None:
        """The upper end of the interval."""
        return self.shown(self.interval().high) if self._has_interval else None

    @property
    def _has_interval(self) -> bool:
        return not self.partial and not self.too_few

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
        )

    def margin(self, share: float) -> Band:
        """Return the margin within which two are equal: ``share`` of a ratio or, for scores, that
        difference but at least three test images."""
        if self.logs:
            return sequential.ratio_margin(share)
        share = max(share, IMAGES * self.resolution)
        return -share, share

    def reading(self, share: float, more: str, less: str) -> str:
        """Return where the whole interval lies: equal within ``share``, else ``more`` or ``less``
        than 1 (ratios) or 0; if undecided, what it takes."""
        if boundaries := self.undecided(share):
            return f"{UNDECIDED}: {self.outlook(boundaries)}"
        interval, margin = self.interval(), self.margin(share)
        if sequential.within(interval, margin) == HOLDS:
            return f"equal within {share:.0%}" if self.logs else f"equal within {margin[1]:.2g}"
        return more if interval.low > 0 else less

    def undecided(self, share: float) -> tuple[float, ...]:
        """Return the boundaries that more values may exclude: no difference, or the ends of the
        margin, whichever are farther from the estimate. Empty if decided."""
        interval, margin = self.interval(), self.margin(share)
        above = sequential.within(interval, (0.0, math.inf))
        if above != UNDECIDED or sequential.within(interval, margin) == HOLDS:
            return ()
        return margin if interval and abs(interval.mean) < margin[1] / 2 else (0.0,)

    def outlook(self, boundaries: tuple[float, ...], alpha: float = ALPHA) -> str:
        """Return what it takes for the interval to exclude ``boundaries``."""
        if few := self.too_few:
            return few
        unit = self.of.rstrip("s")
        return sequential.outlook(self.interval(), boundaries, self.cost, unit, alpha)


def numbered(values: Iterable[float]) -> Series:
    """Return a series of values, numbered from 0."""
    return Series(dict(enumerate(values)))
