"""The figures of a study: each answers a question, with a part per model."""

from __future__ import annotations

import math
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from parbench.reporting.curves import sweep_figures
from parbench.reporting.drawing import (
    WIDTH,
    Panel,
    bar_label,
    colours,
    figure_json,
)
from parbench.reporting.phases import phases_figure
from parbench.reporting.scaling import scaling_figure
from parbench.reporting.second_device import second_device_figure
from parbench.reporting.streams import streams_figure
from parbench.reporting.study import Study
from parbench.reporting.text import convert, cut, heading, unit_text
from parbench.verdicts.words import OK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEYS = ("elapsed_seconds", "test_accuracy")  # of an epoch's entry in a history

Curve = tuple[str, list[dict]]  # label, and the mean entry of each epoch


def figures(study: Study) -> list[dict]:
    """Return the study's figures; none if no cell ended well."""
    if not any(run["status"] == OK for run in study.runs.values()):
        return []
    makers = (learning_figure, second_device_figure, streams_figure, scaling_figure, phases_figure)
    learning, *others = (make(study) for make in makers)
    return [figure for figure in (learning, *sweep_figures(study), *others) if figure]


def learning_figure(study: Study) -> dict | None:
    """Return the figure of accuracy over time, for models that several variants train."""
    curves: dict[str, list[Curve]] = {}
    for group in study.own:
        histories = [run["history"] for run in group.ok if run["history"]]
        if histories and group.training.profile == "none" and group.training.steps is None:
            means = [_mean_epoch(entries) for entries in zip(*histories, strict=False)]
            if len(means) < 2:
                continue  # one point is not a curve
            curves.setdefault(group.model, []).append((bar_label(study, group), means))
    curves = {
        model: model_curves for model, model_curves in curves.items() if len(model_curves) > 1
    }
    if not curves:
        return None
    panels = {
        model: Panel(
            partial(_draw_curves, study, model, model_curves),
            1.7 + 0.17 * math.ceil(len(model_curves) / 2),
            WIDTH / 2,
        )
        for model, model_curves in curves.items()
    }
    caption = (
        "Accuracy on the test images after each epoch (a dot) against the training time "
        "so far: mean over seeds."
    )
    return figure_json(study, "learning", "Does it learn the same?", caption, panels, 2)


def _mean_epoch(entries: tuple[dict, ...]) -> dict:
    return {key: fmean(entry[key] for entry in entries) for key in KEYS}


def _draw_curves(study: Study, model: str, curves: list[Curve], figure: Figure) -> None:
    """Draw a model's accuracy over training time."""
    palette, time_unit = colours(study), study.unit("train_seconds") or "s"
    unit = study.unit("test_accuracy")
    axes = figure.subplots()
    for label, entries in curves:
        heights = [convert(entry["test_accuracy"], "fraction", unit) for entry in entries]
        times = [convert(entry["elapsed_seconds"], "s", time_unit) for entry in entries]
        look = dict(zip(("color", "ls"), palette[label], strict=True))
        axes.plot(times, heights, label=cut(label, 20), marker="o", lw=1.3, ms=2.6, **look)
    axes.grid(visible=True)
    axes.set_title(cut(model, 30))
    axes.set_ylabel(heading("test_accuracy", unit))
    axes.set_xlabel(f"Training time ({unit_text(time_unit)})")
    figure.legend(loc="outside lower left", ncols=2, fontsize=6.5)
