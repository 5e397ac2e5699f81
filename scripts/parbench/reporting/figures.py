"""The figures of a study: each a question, what answers it, and a part a model."""

from __future__ import annotations

import math
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from parbench.reporting.drawing import (
    INK,
    WHISKERS,
    Groups,
    Panel,
    bar_figure,
    bar_label,
    colours,
    figure_json,
)
from parbench.reporting.phases import phases_figure
from parbench.reporting.study import Study, bound
from parbench.reporting.text import convert, cut, heading, unit_text
from parbench.verdicts.groups import Group
from parbench.verdicts.words import FEWEST, OK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPREAD = f"mean ± standard deviation, or the range of fewer than {FEWEST}"
KEYS = ("epoch", "elapsed_seconds", "test_accuracy")  # of an epoch's entry in a history

Curve = tuple[str, list[dict]]  # label, and the mean entry of each epoch


def figures(study: Study) -> list[dict]:
    """The study's figures; none for a study of which no cell ended well."""
    if not any(run["status"] == OK for run in study.runs.values()):
        return []
    made = (time_figure, speedup_figure, learning_figure, memory_figure, phases_figure)
    return [figure for figure in (make(study) for make in made) if figure]


def _drawn(study: Study, metric: str, failed: bool = False) -> Groups:
    """Every group with a number of the metric, by model; with ``failed`` also those that ran and
    have none. Instrumented groups stand apart."""
    found: dict[str, list[Group]] = {}
    for group in study.groups:
        row = study.row(group, metric)
        if row is None or group.training.profile != "none":
            continue
        if row.mean is not None or (failed and len(group.ok) < len(group.runs)):
            found.setdefault(group.model, []).append(group)
    return found


def time_figure(study: Study) -> dict | None:
    """Which strategy trains fastest? Of whole epochs: the time of some steps is of other work."""
    groups = {
        model: [group for group in each if group.training.steps is None]
        for model, each in _drawn(study, "train_seconds", failed=True).items()
    }
    groups = {model: each for model, each in groups.items() if each}
    caption = f"Training time: {SPREAD}."
    return _lengths(study, "time", "Which strategy trains fastest?", caption, groups)


def memory_figure(study: Study) -> dict | None:
    """What does it cost in memory? On the accelerator where there is one, else the process."""
    metric, where = "peak_memory_device_mib", "on a device"
    if not _drawn(study, metric):
        metric, where = "peak_memory_process_mib", "of a process, libraries included"
    made = "memory", "What does it cost in memory?", f"Highest memory {where}: {SPREAD}."
    return _lengths(study, *made, _drawn(study, metric), metric)


def _lengths(
    study: Study,
    name: str,
    title: str,
    caption: str,
    groups: Groups,
    metric: str = "train_seconds",
) -> dict | None:
    """Bars from zero with their spread and, at the end, the number or why there is none."""
    if not groups:
        return None
    palette, unit = colours(study), study.unit(metric)

    def draw(axes: Axes, rows: list[Group]) -> None:
        labels = []
        for place, group in enumerate(rows):
            row = study.row(group, metric)
            if row.mean is None:
                labels.append((0.0, group.short_status))
                continue
            value = convert(row.mean, row.unit, unit)
            below, above = study.whiskers(row, unit)
            axes.barh(place, value, height=0.56, color=palette[bar_label(study, group)][0])
            if below or above:
                axes.errorbar(value, place, xerr=[[below], [above]], color=INK, **WHISKERS)
            labels.append((value + above, study.spread(row, unit)))
        longest = max(end for end, _ in labels)
        if not longest:
            axes.set_xticks([])  # no group of this model has a number: no scale either
            longest = 1.0
        for place, (end, text) in enumerate(labels):
            axes.text(end + longest * 0.03, place, text, va="center", fontsize=7.5)
        axes.set_xlim(0, longest * 1.62)

    return bar_figure(study, name, title, caption, groups, draw, heading(metric, unit))


def speedup_figure(study: Study) -> dict | None:
    """Does it scale?"""
    groups = _drawn(study, "speedup")
    if not groups:
        return None
    caption = f"Dot: {SPREAD}; bar: the bound that the number of devices sets."
    palette = colours(study)

    def draw(axes: Axes, rows: list[Group]) -> None:
        top = 1.0
        for place, group in enumerate(rows):
            row, most = study.row(group, "speedup"), bound(group)
            axes.plot([most] * 2, [place - 0.34, place + 0.34], color=INK, lw=1.6)
            below, above = study.whiskers(row, "x")
            dot = {"fmt": "o", "ms": 5, "color": palette[bar_label(study, group)][0]}
            axes.errorbar(row.mean, place, xerr=[[below], [above]], ecolor=INK, **dot, **WHISKERS)
            top = max(top, most, row.mean + above)
        axes.axvline(1, color=INK, lw=0.7, ls=":")
        axes.set_xlim(0, top * 1.06)

    return bar_figure(study, "speedup", "Does it scale?", caption, groups, draw, "Speedup (×)")


def learning_figure(study: Study) -> dict | None:
    """Does it learn the same? Accuracy over epochs and over seconds, a row a model."""
    curves: dict[str, list[Curve]] = {}
    for group in study.own:
        histories = [run["history"] for run in group.ok if run["history"]]
        if histories and group.training.profile == "none" and group.training.steps is None:
            mean = [_mean_epoch(entries) for entries in zip(*histories, strict=False)]
            curves.setdefault(group.model, []).append((bar_label(study, group), mean))
    if not curves:
        return None
    panels = {
        model: Panel(
            partial(_draw_curves, study, model, each), 1.95 + 0.2 * math.ceil(len(each) / 3)
        )
        for model, each in curves.items()
    }
    caption = "Accuracy on the test images after each epoch: mean over seeds."
    return figure_json(study, "learning", "Does it learn the same?", caption, panels)


def _mean_epoch(entries: tuple[dict, ...]) -> dict:
    return {key: fmean(entry[key] for entry in entries) for key in KEYS}


def _draw_curves(study: Study, model: str, curves: list[Curve], figure: Figure) -> None:
    """A model's accuracy over epochs (left) and over training time (right)."""
    palette, time_unit = colours(study), study.unit("train_seconds") or "s"
    unit = study.unit("test_accuracy")
    left, right = figure.subplots(1, 2, sharey=True)
    for name, points in curves:
        heights = [convert(p["test_accuracy"], "fraction", unit) for p in points]
        times = [convert(p["elapsed_seconds"], "s", time_unit) for p in points]
        look = dict(zip(("color", "ls"), palette[name], strict=True))
        look |= {"lw": 1.4, "ms": 2.6, "marker": "o" if len(points) < 16 else ""}
        left.plot([p["epoch"] for p in points], heights, label=name, **look)
        right.plot(times, heights, **look)
    for axes in (left, right):
        axes.grid(visible=True)
    left.set_title(cut(model, 30))
    left.set_ylabel(heading("test_accuracy", unit))
    left.set_xlabel("Epoch")
    left.xaxis.get_major_locator().set_params(integer=True)
    right.set_xlabel(f"Training time ({unit_text(time_unit)})")
    figure.legend(loc="outside lower left", ncols=3)
