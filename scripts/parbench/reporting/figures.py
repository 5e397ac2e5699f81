"""The figures of a study: each answers a question, with a part per model."""

from __future__ import annotations

import math
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from parbench.reporting.curves import streams_figure, sweep_figures
from parbench.reporting.drawing import (
    COLORS,
    INK,
    WIDTH,
    FigureEntry,
    Panel,
    bar_label,
    colors,
    figure_json,
)
from parbench.reporting.phase_section import phases_figure
from parbench.reporting.scaling import scaling_figure
from parbench.reporting.study_results import StudyResults
from parbench.reporting.text import convert, cut, heading, unit_text
from parbench.runs.metrics import METRICS
from parbench.runs.parts import Epoch
from parbench.verdicts.groups import Group
from parbench.verdicts.ratios import ratio_text
from parbench.verdicts.sequential import Series
from parbench.verdicts.terms import OK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SECOND = "Tune one device, or add a second?"
Point = tuple[float, float]  # epochs or seconds of training so far, and test accuracy: means
Curve = tuple[str, list[Point]]  # label, and the point of each epoch


def figures(study: StudyResults) -> list[FigureEntry]:
    """Return the study's figures; none if no cell ended well."""
    if not any(run.status == OK for run in study.runs.alone.values()):
        return []
    makers = (learning_figure, second_device_figure, streams_figure, scaling_figure, phases_figure)
    learning, *others = (make(study) for make in makers)
    return [figure for figure in (learning, *sweep_figures(study), *others) if figure]


def learning_figure(study: StudyResults) -> FigureEntry | None:
    """Return the figure of accuracy over time, for models that several variants train; over epochs
    if cells shared a machine, so that their times mean little."""
    histories_by_group = {
        group: histories
        for group in study.own
        if (histories := [run.history for run in group.ok if run.history])
        and group.training.profile == "none"
        and group.training.steps is None
        and min(map(len, histories)) > 1  # one point is not a curve
    }
    shared = any(group.shared for group in histories_by_group)
    curves: dict[str, list[Curve]] = {}
    for group, histories in histories_by_group.items():
        points = [_mean_epoch(epochs, shared) for epochs in zip(*histories, strict=False)]
        curves.setdefault(group.model, []).append((bar_label(study, group), points))
    curves = {
        model: model_curves for model, model_curves in curves.items() if len(model_curves) > 1
    }
    if not curves:
        return None
    panels = {
        model: Panel(
            partial(_draw_curves, study, model, model_curves, shared),
            1.7 + 0.17 * math.ceil(len(model_curves) / 2),
            WIDTH / 2,
        )
        for model, model_curves in curves.items()
    }
    caption = "Accuracy on the test images after each epoch (a dot)"
    if shared:
        caption += (
            ": mean over seeds. Not against the training time, since other cells ran at the same "
            "time as some of these and may have slowed them."
        )
    else:
        caption += " against the training time so far: mean over seeds."
    return figure_json(study, "learning", "Does it learn the same?", caption, panels, 2)


def _mean_epoch(epochs: tuple[Epoch, ...], shared: bool) -> Point:
    scores = (each.test_accuracy for each in epochs)
    measured = [score for score in scores if score is not None]
    so_far = (each.epoch if shared else each.elapsed_seconds for each in epochs)
    return fmean(so_far), fmean(measured)


def _draw_curves(
    study: StudyResults, model: str, curves: list[Curve], shared: bool, figure: Figure
) -> None:
    """Draw a model's accuracy over training time or, if ``shared``, over epochs."""
    palette, time_unit = colors(study), study.unit("train_seconds") or "s"
    unit = study.unit("test_accuracy")
    axes = figure.subplots()
    for label, points in curves:
        heights = [convert(accuracy, "fraction", unit) for _, accuracy in points]
        passed = [so_far if shared else convert(so_far, "s", time_unit) for so_far, _ in points]
        look = dict(zip(("color", "ls"), palette[label], strict=True))
        axes.plot(passed, heights, label=cut(label, 20), marker="o", lw=1.3, ms=2.6, **look)
    axes.grid(visible=True)
    axes.set_title(cut(model, 30))
    axes.set_ylabel(heading("test_accuracy", unit))
    axes.set_xlabel("Epoch" if shared else f"Training time ({unit_text(time_unit)})")
    if shared:
        axes.locator_params(axis="x", integer=True)
    figure.legend(loc="outside lower left", ncols=2, fontsize=6.5)


# ---------------------------------------------------------------- a second device


def second_device_figure(study: StudyResults) -> FigureEntry | None:
    """Return the figure of measured pairs with a baseline; None without any, or if the study names
    no variant with a second device."""
    second = study.study.second_device
    by_baseline: dict[str, list[tuple[Group, Series]]] = {}
    for group in study.own if second else ():
        pair, baseline = group.baseline_pair, group.baseline
        if baseline is not None and baseline != group.id and pair is not None and pair.restarts:
            by_baseline.setdefault(baseline, []).append((group, pair.series))
    models = [study.by_id[baseline].model for baseline in by_baseline]
    panels: dict[str, Panel] = {}
    for baseline, groups in by_baseline.items():
        name = _name(study.by_id[baseline], models)
        draw = partial(_draw_second, study, name, groups)
        panels[name] = Panel(draw, 0.9 + 0.24 * len(groups), WIDTH)
    if not panels:
        return None
    caption = (
        "Speed relative to one device with unchanged settings, from pairs measured in "
        "turns, with the 95 % interval (none for fewer than 4 restarts). The last row and the "
        "dashed line are a second device with unchanged settings. Compiling happens "
        "before the clock starts; its seconds per start are given separately."
    )
    return figure_json(study, "second-device", SECOND, caption, panels)


def _name(baseline: Group, models: list[str]) -> str:
    """Return the model's name, with settings if several baselines share it."""
    if models.count(baseline.model) == 1:
        return baseline.model
    used = baseline.training
    return f"{baseline.model}, {used.optimizer}, {used.precision}, batch {used.global_batch}"


def _draw_second(
    study: StudyResults, name: str, measured: list[tuple[Group, Series]], figure: Figure
) -> None:
    """Draw a row per variant; the second device comes last."""
    second = study.study.second_device
    rows = sorted(measured, key=lambda row: row[0].variant == second)
    axes = figure.subplots()
    for position, (group, series) in enumerate(rows):
        is_second = group.variant == second
        color = COLORS[1] if is_second else COLORS[0]
        axes.plot(series.known_mean, position, "o", ms=5, color=color)
        if series.ends:
            axes.plot(series.ends, [position, position], lw=2, color=color)
        if is_second:
            axes.axvline(series.known_mean, color=color, lw=0.8, ls="--")
        axes.annotate(
            f"{ratio_text(series.known_mean)}×{_compiling(group)}",
            (1.01, position),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=7,
        )
    axes.axvline(1.0, color=INK, lw=0.6)
    axes.set_yticks(range(len(rows)), [bar_label(study, group) for group, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=True, axis="x")
    axes.set_title(cut(name, 40))
    axes.set_xlabel("Speed relative to one device with unchanged settings")


def _compiling(group: Group) -> str:
    """Return the mean compile time in words, if any."""
    seconds = group.series(METRICS["compile_seconds"])
    return f", compiled {seconds.mean:.0f} s" if seconds.values else ""
