"""How many images per second a stream delivers, and how late, by model."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from parbench.files import canonical_json
from parbench.measure.metrics import METRICS
from parbench.reporting.curves import SPREAD, draw_line, seeds_line
from parbench.reporting.drawing import COLOURS, WIDTH, Panel, figure_json
from parbench.reporting.study import Study
from parbench.reporting.text import cut
from parbench.verdicts.groups import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LATENCIES = ("latency_median_seconds", "latency_p95_seconds", "latency_p99_seconds")
Points = dict[float, Group]  # by rate


def streams_figure(study: Study) -> dict | None:
    """Return the figure of groups that differ only in their rate; None without any."""
    by_model: dict[str, dict[str, Points]] = {}
    for group in study.own:
        if group.ok and "rate" in group.options:
            options = {**group.options, "rate": None}
            settings = [
                options,
                asdict(group.hardware),
                asdict(group.training),
                group.model_options,
            ]
            by_settings = by_model.setdefault(group.model, {})
            by_settings.setdefault(canonical_json(settings), {})[group.options["rate"]] = group
    panels = {
        f"{model}, {points[min(points)].variant}": Panel(
            partial(_draw, model, dict(sorted(points.items()))), 2.0, WIDTH
        )
        for model, by_settings in by_model.items()
        for points in by_settings.values()
        if len(points) > 1
    }
    if not panels:
        return None
    caption = (
        "Results per second (left) and latency (right) by the rate at which images arrive: mean "
        f"over seeds, {SPREAD}. On the dashed line results keep up with arrivals."
    )
    title = "At which rate does it no longer keep up?"
    return figure_json(study, "streams", title, caption, panels)


def _draw(model: str, points: Points, figure: Figure) -> None:
    """Draw a model's throughput and latencies."""
    left, right = figure.subplots(1, 2)
    rates = list(points)
    left.plot(rates, rates, color=COLOURS[-1], ls="--", lw=1)
    _line(left, points, "inference_samples_per_second", COLOURS[0])
    left.set_title(cut(f"{model}: results", 36))
    left.set_ylabel("images/s")
    for name, colour in zip(LATENCIES, COLOURS, strict=False):
        _line(right, points, name, colour)
    right.set_title("Latency")
    right.set_ylabel("s")
    right.legend(fontsize=6.5)
    for axes in (left, right):
        axes.set_xlabel("Images that arrive per second")
        axes.set_ylim(bottom=0)
        axes.grid(visible=True)


def _line(axes: Axes, points: Points, metric: str, colour: str) -> None:
    measure = METRICS[metric]
    draw_line(axes, seeds_line(points, measure, measure.label), colour)
