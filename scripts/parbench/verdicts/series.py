"""What a verdict rests on: a value of each seed, or restart (docs/verdicts.md)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from parbench.verdicts import sequential
from parbench.verdicts.sequential import ALPHA, Band, Interval
from parbench.verdicts.words import HOLDS, UNDECIDED, too_few

IMAGES = 3  # of the test set, within which two scores are always equal


@dataclass(frozen=True)
class Series:
    """Values that count as independent, by the number of the seed or restart.

    ``logs``: they are logarithms of ratios, else numbers or differences as they are; ``cost``:
    seconds that one more takes; ``resolution``: the least step that is measured; ``reasons``: why
    some are missing; ``partial``: they have no mean, which would leave out others.
    """

    values: Mapping[int, float]
    of: str = "seeds"
    logs: bool = False
    cost: float = 0.0
    resolution: float = 0.0
    reasons: tuple[str, ...] = ()
    partial: bool = False

    def shown(self, value: float) -> float:
        """A value, or an end of an interval, as a reader sees it."""
        return math.exp(value) if self.logs else value

    @property
    def points(self) -> list[float]:
        """Every value as a reader sees it."""
        return list(map(self.shown, self.values.values()))

    def interval(self, alpha: float = ALPHA) -> Interval | None:
        """Of their mean; None of too few."""
        return sequential.interval(self.values.values(), alpha, self.resolution)

    # As tables and reports show them; None where there are too few, or no mean.

    @property
    def seeds(self) -> int:
        """How many there are."""
        return len(self.values)

    @property
    def too_few(self) -> str:
        """Why they decide nothing; empty where they are enough."""
        return too_few(self.seeds, self.of)

    @property
    def mean(self) -> float | None:
        """Of ratios the geometric one."""
        there = self.values and not self.partial
        return self.shown(statistics.fmean(self.values.values())) if there else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation."""
        return statistics.stdev(self.points) if self.seeds > 1 and not self.partial else None

    @property
    def ci_low(self) -> float | None:
        """Where the interval begins."""
        return self.shown(self.interval().low) if self._has_interval else None

    @property
    def ci_high(self) -> float | None:
        """Where it ends."""
        return self.shown(self.interval().high) if self._has_interval else None

    @property
    def _has_interval(self) -> bool:
        return not self.partial and not self.too_few

    @property
    def min(self) -> float | None:
        """The least."""
        return min(self.points, default=None)

    @property
    def max(self) -> float | None:
        """The largest."""
        return max(self.points, default=None)

    def times(self, factor: float) -> Series:
        """The ratios, each ``factor`` times as large."""
        values = {n: value + math.log(factor) for n, value in self.values.items()}
        return replace(self, values=values)

    def inverse(self) -> Series:
        """Of the second over the first."""
        return replace(self, values={n: -value for n, value in self.values.items()})

    def beside(self, other: Series) -> Series:
        """This ratio over ``other``, or this difference less it, where both have a value."""
        shared = [n for n in self.values if n in other.values]
        return replace(
            self,
            values={n: self.values[n] - other.values[n] for n in shared},
            cost=self.cost + other.cost,
            reasons=tuple(dict.fromkeys([*self.reasons, *other.reasons])),
        )

    def margin(self, share: float) -> Band:
        """Within which two are equal: a ratio by its ``share``, scores by that difference, and
        never less than three test images."""
        if self.logs:
            return sequential.ratio_margin(share)
        share = max(share, IMAGES * self.resolution)
        return -share, share

    def reading(self, share: float, more: str, less: str) -> str:
        """``more`` or ``less`` than 1 (ratios) or 0, or equal within ``share``, where the whole
        interval lies there; else what it takes."""
        if boundaries := self.undecided(share):
            return f"{UNDECIDED}: {self.outlook(boundaries)}"
        found, margin = self.interval(), self.margin(share)
        if sequential.within(found, margin) == HOLDS:
            return f"equal within {share:.0%}" if self.logs else f"equal within {margin[1]:.2g}"
        return more if found.low > 0 else less

    def undecided(self, share: float) -> tuple[float, ...]:
        """The boundaries that more values may leave out: none, or those of equality, whichever are
        farther from the estimate. Empty where it is told."""
        found, margin = self.interval(), self.margin(share)
        above = sequential.within(found, (0.0, math.inf))
        if above != UNDECIDED or sequential.within(found, margin) == HOLDS:
            return ()
        return margin if found and abs(found.mean) < margin[1] / 2 else (0.0,)

    def outlook(self, boundaries: tuple[float, ...]) -> str:
        """What it takes until the interval leaves out one of ``boundaries``."""
        if few := self.too_few:
            return few
        return sequential.outlook(self.interval(), boundaries, self.cost, self.of.rstrip("s"))


def numbered(values: Iterable[float]) -> Series:
    """A value of each seed."""
    return Series(dict(enumerate(values)))
