"""Lines of metrics over what varies, with error bars: what curves and scaling draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from parbench.reporting.text import cut, decimals, fixed, hardware_text
from parbench.runs.metric import Metric
from parbench.verdicts.groups import Group
from parbench.verdicts.terms import FEWEST

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SPREAD = f"± standard deviation, or the range of fewer than {FEWEST}"
MOST_TICKS = 5


@dataclass(frozen=True)
class Point:
    """A point with the ends of its error bar."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """A curve; ``failed``: by x, why cells ended without a number."""

    label: str
    points: list[Point]
    failed: Mapping[float, str] = field(default_factory=dict)

    def words(self, unit: str) -> str:
        """Return the curve in words."""
        places = decimals([point.y for point in self.points], unit)
        text_by_x = dict(self.failed)
        for point in self.points:
            ends = dict.fromkeys(fixed(end, places) for end in (point.low, point.high))
            range_ = f" ({' to '.join(ends)})" if len(ends) > 1 else ""
            text_by_x[point.x] = f"{fixed(point.y, places)}{range_}"
        return f"{self.label}: " + ", ".join(f"at {x:g} {text_by_x[x]}" for x in sorted(text_by_x))


def seeds_line(groups: Mapping[float, Group], metric: Metric, label: str = "") -> Line:
    """Return the line of a metric, from ``groups`` by x: means over seeds."""
    points: list[Point] = []
    failed: dict[float, str] = {}
    first = next(iter(groups.values()))
    for x, group in sorted(groups.items()):
        series = group.series(metric)
        if group.runs and not group.ok:
            failed[x] = group.short_status
        elif series.mean is not None:
            spread = min(series.points), max(series.points)
            if series.std is not None and not series.too_few:
                spread = series.mean - series.std, series.mean + series.std
            points.append(Point(x, series.mean, *spread))
    return Line(label or f"{first.strategy}, {hardware_text(first.hardware)}", points, failed)


def draw_line(axes: Axes, line: Line, color: str, style: str = "-") -> None:
    """Draw a line with error bars, and a cross where a cell ended without a number.

    ``style``: the line's style in matplotlib's notation.
    """
    xs, ys = [point.x for point in line.points], [point.y for point in line.points]
    errors = [[p.y - p.low for p in line.points], [p.high - p.y for p in line.points]]
    axes.errorbar(
        xs,
        ys,
        yerr=errors,
        label=cut(line.label, 36),
        color=color,
        marker="o",
        ls=style,
        lw=1.3,
        ms=3,
        capsize=2,
        elinewidth=0.8,
    )
    for x, reason in line.failed.items():
        common = {"transform": axes.get_xaxis_transform(), "color": color, "clip_on": False}
        axes.plot(x, 0.03, "x", ms=5, mew=1.4, **common)
        axes.text(x, 0.1, f"{reason} ", rotation=90, fontsize=6, ha="right", va="bottom", **common)


def by_doubling(axes: Axes, places: Iterable[float]) -> None:
    """Make the x axis log2, with ticks at ``places``, thinned to MOST_TICKS."""
    axes.set_xscale("log", base=2)
    ticks = sorted(set(places))
    ticks = ticks[:: math.ceil(len(ticks) / MOST_TICKS)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=7)
    axes.minorticks_off()
    axes.grid(visible=True)
