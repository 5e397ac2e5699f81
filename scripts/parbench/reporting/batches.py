"""How throughput depends on the size of a batch: a figure of each model, by hardware."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from parbench.cell import Training
from parbench.measure.metrics import METRICS
from parbench.reporting.drawing import COLOURS, WIDTH, Panel, figure_json
from parbench.reporting.study import Study
from parbench.reporting.text import cut, hardware_text
from parbench.verdicts.groups import Group

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of training, in tokens where it is of texts; of inference.
TRAINING, INFERENCE = ("tokens_per_second", "samples_per_second"), ("inference_samples_per_second",)
Points = dict[int, Group]  # by size of the batch
Line = tuple[str, Points]  # with its label


def batches_figure(study: Study) -> dict | None:
    """What does a larger batch bring? For groups that differ in their batches alone."""
    models: dict[str, dict[tuple[str, Training], Points]] = {}
    for group in study.own:
        training = group.training
        if not group.ok or training.steps is None or training.profile != "none":
            continue
        alike = replace(training, global_batch=0, evaluation_batch=0, min_tail=0, steps=0)
        label = f"{group.strategy}, {hardware_text(group.hardware)}"
        series = models.setdefault(group.model, {}).setdefault((label, alike), {})
        series.setdefault(training.global_batch, group)
    panels = {}
    for model, found in models.items():
        if lines := [(label, each) for (label, _), each in found.items() if len(each) > 1]:
            height = 1.6 + 0.17 * math.ceil(len(lines) / 2)
            panels[model] = Panel(partial(_draw, model, lines), height, WIDTH)
    if not panels:
        return None
    caption = (
        "Throughput of training (left) and of inference (right) over a few steps, by the size of "
        "the batch: mean over seeds. Of texts, training is counted in tokens without padding."
    )
    return figure_json(study, "batches", "What does a larger batch bring?", caption, panels)


def _draw(model: str, lines: list[Line], figure: Figure) -> None:
    """A model's throughput, a line a kind of hardware."""
    for axes, title, names in zip(
        figure.subplots(1, 2), ("Training", "Inference"), (TRAINING, INFERENCE), strict=True
    ):
        metric = next(METRICS[name] for name in names if means(lines[0][1], name))
        for (label, series), colour in zip(lines, itertools.cycle(COLOURS), strict=False):
            points = means(series, metric.name)
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                label=cut(label, 30),
                marker="o",
                lw=1.3,
                ms=3,
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({size for _, series in lines for size in series}))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_ylim(bottom=0)
        axes.grid(visible=True)
        axes.set_title(cut(f"{model}: {title.lower()}", 36))
        axes.set_xlabel("Batch (samples)")
        axes.set_ylabel(metric.unit)
    names = figure.axes[0].get_legend_handles_labels()
    figure.legend(*names, loc="outside lower left", ncols=2, fontsize=6.5)


def means(series: Mapping[float, Group], metric: str) -> list[tuple[float, float]]:
    """Place on the axis and mean over seeds of each group that has the metric."""
    read = METRICS[metric].read
    found = {
        size: [value for value in map(read, group.ok) if value is not None]
        for size, group in series.items()
    }
    return [(size, fmean(values)) for size, values in sorted(found.items()) if values]
