"""Curves of metrics over a setting that varies: batch size, image size or training samples.

One figure per setting, and one of streams, whose rate varies.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from parbench.files import canonical_json
from parbench.reporting.drawing import COLORS, WIDTH, FigureEntry, Panel, figure_json
from parbench.reporting.lines import SPREAD, Line, by_doubling, draw_line, seeds_line
from parbench.reporting.scaling import scaled
from parbench.reporting.study_results import StudyResults
from parbench.reporting.text import cut, unit_text
from parbench.runs.metric import Metric
from parbench.runs.metrics import METRICS
from parbench.verdicts.groups import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEMORY = ("peak_memory_device_mib", "peak_memory_process_mib")


@dataclass(frozen=True)
class VariedSetting:
    """A setting that varies between otherwise equal groups.

    ``also``: settings that may vary with it; ``metrics``: for each part of the figure, candidates
    of which the first measured one is drawn; ``learns``: whether it uses whole trainings, not a few
    timed steps.
    """

    setting: str
    title: str
    axis: str
    metrics: tuple[tuple[str, ...], ...]
    caption: str
    also: tuple[str, ...] = ("steps",)
    learns: bool = False


SWEEPS = (
    VariedSetting(
        "global_batch",
        "What does a larger batch bring?",
        "Batch (samples)",
        (("tokens_per_second", "samples_per_second"), ("inference_samples_per_second",), MEMORY),
        "Throughput over a few steps, and memory, by batch size. For texts, training "
        "throughput counts tokens without padding.",
        also=("steps", "evaluation_batch", "min_tail"),
    ),
    VariedSetting(
        "image_size",
        "What do larger images cost?",
        "Image size (pixels)",
        (("samples_per_second",), MEMORY),
        "Throughput of training over a few steps, and memory, by the side of an image.",
    ),
    VariedSetting(
        "train_samples",
        "What do more training samples bring?",
        "Training samples",
        (("train_seconds",), ("test_accuracy",)),
        "Time to train, and accuracy on the test images, by the number of training samples.",
        also=(),
        learns=True,
    ),
)


def sweep_figures(study: StudyResults) -> list[FigureEntry]:
    """Return a figure for each setting that is the only difference between groups."""
    return [figure for figure in (_figure(study, varied) for varied in SWEEPS) if figure]


def _figure(study: StudyResults, varied: VariedSetting) -> FigureEntry | None:
    models: dict[str, dict[str, dict[float, Group]]] = {}
    for group in study.own:
        settings = asdict(group.training) | asdict(group.dataset)
        timed = group.training.steps is not None
        x = settings[varied.setting]
        # Groups scaled from one device have their own figure.
        if x is None or timed == varied.learns or scaled(group, study.by_id):
            continue
        if group.not_run or group.training.profile != "none":
            continue
        others = {k: v for k, v in settings.items() if k not in (varied.setting, *varied.also)}
        key = [group.strategy, group.options, group.model_options, others, asdict(group.hardware)]
        groups_by_key = models.setdefault(group.model, {})
        groups_by_key.setdefault(canonical_json(key), {}).setdefault(x, group)
    panels = {}
    for model, groups_by_key in models.items():
        shown = [
            groups
            for groups in groups_by_key.values()
            if len(groups) > 1 and any(g.ok for g in groups.values())
        ]
        if parts := [part for names in varied.metrics if (part := _part(shown, names))]:
            height = 1.95 + 0.17 * math.ceil(len(shown) / 2)
            words = ". ".join(
                f"{metric.label}: {_alt_text(lines, metric)}" for metric, lines in parts
            )
            draw = partial(_draw, model, varied.axis, parts)
            panels[model] = Panel(draw, height, WIDTH, words)
    caption = f"{varied.caption} Means over seeds, {SPREAD}; ×: why a cell ended without a number."
    if any(
        group.shared for own in models.values() for by_x in own.values() for group in by_x.values()
    ):
        caption += " Some cells ran at the same time on one machine, which slows them."
    return figure_json(study, varied.setting, varied.title, caption, panels) if panels else None


def _part(
    shown: list[dict[float, Group]], names: tuple[str, ...]
) -> tuple[Metric, list[Line]] | None:
    """Return the first of ``names`` that any group measured, with its lines."""
    for metric in (METRICS[name] for name in names):
        lines = [seeds_line(groups, metric) for groups in shown]
        if any(line.points for line in lines):
            return metric, lines
    return None


def _alt_text(lines: Iterable[Line], metric: Metric) -> str:
    return "; ".join(line.words(metric.unit) for line in lines if line.points)


# ---------------------------------------------------------------- drawing


def _draw(model: str, axis: str, parts: list[tuple[Metric, list[Line]]], figure: Figure) -> None:
    """Draw a model's curves side by side."""
    all_axes = figure.subplots(1, len(parts), squeeze=False)[0]
    for axes, (metric, lines) in zip(all_axes, parts, strict=True):
        for line, color in zip(lines, itertools.cycle(COLORS), strict=False):
            draw_line(axes, line, color)
        points = [point for line in lines for point in line.points]
        by_doubling(axes, [p.x for p in points] + [x for line in lines for x in line.failed])
        axes.set_ylim(0, 1.1 * max(point.high for point in points) or 1)
        axes.set_title(metric.label, fontsize=8)
        axes.set_xlabel(axis)
        axes.set_ylabel(unit_text(metric.unit))
    figure.suptitle(cut(model, 60), x=0.01, ha="left", fontsize=9, weight="bold")
    figure.legend(
        *all_axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=2, fontsize=6.5
    )


# ---------------------------------------------------------------- streams

LATENCIES = ("latency_median_seconds", "latency_p95_seconds", "latency_p99_seconds")
Rates = dict[float, Group]  # by rate


def streams_figure(study: StudyResults) -> FigureEntry | None:
    """Return the figure of groups that differ only in their rate; None without any."""
    by_model: dict[str, dict[str, Rates]] = {}
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
            partial(_draw_stream, model, dict(sorted(points.items()))), 2.0, WIDTH
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


def _draw_stream(model: str, points: Rates, figure: Figure) -> None:
    """Draw a model's throughput and latencies."""
    left, right = figure.subplots(1, 2)
    rates = list(points)
    left.plot(rates, rates, color=COLORS[-1], ls="--", lw=1)
    _stream_line(left, points, "inference_samples_per_second", COLORS[0])
    left.set_title(cut(f"{model}: results", 36))
    left.set_ylabel("images/s")
    for name, color in zip(LATENCIES, COLORS, strict=False):
        _stream_line(right, points, name, color)
    right.set_title("Latency")
    right.set_ylabel("s")
    right.legend(fontsize=6.5)
    for axes in (left, right):
        axes.set_xlabel("Images that arrive per second")
        axes.set_ylim(bottom=0)
        axes.grid(visible=True)


def _stream_line(axes: Axes, points: Rates, metric: str, color: str) -> None:
    measure = METRICS[metric]
    draw_line(axes, seeds_line(points, measure, measure.label), color)
