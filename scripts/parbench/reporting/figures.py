"""The four figures of a study: each a question, an answer in its caption, and SVG parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from parbench.reporting.drawing import (
    INK,
    WHISKERS,
    Bar,
    Bars,
    bar_figure,
    bar_label,
    colours,
    figure_json,
    measured,
    svg,
)
from parbench.reporting.study import Study, bound
from parbench.reporting.text import convert, cut, heading, listed, ratio_text, unit_text
from parbench.verdicts.words import DECIDE_FROM, OK, too_few


def figures(study: Study) -> list[dict]:
    """The study's four figures; none for a study of which no cell ended well."""
    if not any(run["status"] == OK for run in study.runs.values()):
        return []
    made = (time_figure, speedup_figure, learning_figure, memory_figure)
    return [figure for figure in (make(study) for make in made) if figure]


# ---------------------------------------------------------------- questions, answers


def time_figure(study: Study) -> dict | None:
    """Which strategy trains fastest?"""
    metric = "train_seconds"
    panels = _of_whole_epochs(measured(study, metric))
    if not panels:
        return None
    unit = study.unit(metric)
    answers = [_fastest(study, bars, model, unit) for model, bars in panels.items()]
    caption = f"Least training time: {listed(answers)}."
    panels = _of_whole_epochs(measured(study, metric, failed=True))
    return _lengths(study, "time", "Which strategy trains fastest?", caption, panels, metric)


def _fastest(study: Study, bars: list[Bar], model: str, unit: str) -> str:
    """``ddp for swin (4.1 ± 0.2 (3) s; next eager, 1.4 times as long)``."""
    best, *others = sorted(bars, key=_mean)
    told = study.reproduced(best[1], unit)
    text = f"{bar_label(study, best[0])} for {model} ({told} {unit_text(unit)}"
    if not others:
        return f"{text})"
    name = bar_label(study, others[0][0])
    if few := _few(best, others[0]):
        return f"{text}; next {name}, undecided with {few})"
    if _close(best, others[0]):
        return f"{text}; {name} is within the spread)"
    return f"{text}; next {name}, {ratio_text(_mean(others[0]) / _mean(best))} times as long)"


def speedup_figure(study: Study) -> dict | None:
    """Does it scale?"""
    panels = measured(study, "speedup")
    if not panels:
        return None
    answers = []
    for model, bars in panels.items():
        best, row = max(bars, key=_mean)
        answers.append(
            f"{bar_label(study, best)} for {model}, {study.show(row, 'mean', 'x')}× against "
            f"{study.against(best)} and a bound of {bound(best)}× "
            f"({study.reading(best, row)})"
        )
    caption = (
        f"Highest speedup: {listed(answers)}. Dot: mean ± standard deviation, or the range of "
        f"fewer than {DECIDE_FROM} seeds; bar: the bound that the number of devices sets; grey "
        "band: the noise floor, the baseline against itself."
    )
    palette = colours(study)

    def draw(axes: Any, bars: list[Bar]) -> None:
        top = 1.0
        for place, (group, row) in enumerate(bars):
            most, band = bound(group), study.noise_band(group)
            if band:
                axes.barh(place, band[1] - band[0], left=band[0], height=0.9, color=INK, alpha=0.13)
            axes.plot([most] * 2, [place - 0.34, place + 0.34], color=INK, lw=1.6)
            below, above = study.whiskers(row, "x")
            dot = {"fmt": "o", "ms": 5, "color": palette[bar_label(study, group)][0]}
            axes.errorbar(row.mean, place, xerr=[[below], [above]], ecolor=INK, **dot, **WHISKERS)
            top = max(top, most, row.mean + above, band[1] if band else 1.0)
        axes.axvline(1, color=INK, lw=0.7, ls=":")
        axes.set_xlim(0, top * 1.06)

    return bar_figure(study, "speedup", "Does it scale?", caption, panels, draw, "Speedup (×)")


def learning_figure(study: Study) -> dict | None:
    """Does it learn the same? Accuracy over epochs and over seconds, a row a model."""
    curves: dict[str, list[tuple[str, list[dict]]]] = {}
    for group in study.own:
        histories = [run["history"] for run in group.ok if run["history"]]
        if histories and group.training.profile == "none" and group.training.steps is None:
            mean = [_mean_epoch(entries) for entries in zip(*histories, strict=False)]
            curves.setdefault(group.model, []).append((bar_label(study, group), mean))
    if not curves:
        return None
    unit = study.unit("test_accuracy")
    answers = [
        f"for {model} {_span(study, bars, unit, 'reached')}"
        for model, bars in measured(study, "test_accuracy").items()
    ]
    caption = f"Final accuracy ({unit_text(unit)}): {listed(answers)}. Lines: mean over seeds."
    panel = _curves(study, curves, unit)
    return figure_json(study, "learning", "Does it learn the same?", caption, curves, panel)


def memory_figure(study: Study) -> dict | None:
    """What does it cost in memory? On the accelerator where there is one, else the process."""
    metric, where = "peak_memory_device_mib", "on a device"
    panels = measured(study, metric)
    if not panels:
        metric, where = "peak_memory_process_mib", "of a process, libraries included"
        panels = measured(study, metric)
    if not panels:
        return None
    unit = study.unit(metric)
    answers = [
        f"for {model} {_span(study, bars, unit, 'needed')}" for model, bars in panels.items()
    ]
    caption = f"Highest memory {where} ({unit_text(unit)}): {listed(answers)}."
    return _lengths(study, "memory", "What does it cost in memory?", caption, panels, metric)


# ---------------------------------------------------------------- bars in words


def _of_whole_epochs(panels: Bars) -> Bars:
    """Without the groups that measure some steps only: their times are of other work."""
    whole = {
        model: [bar for bar in bars if bar[0].training.steps is None]
        for model, bars in panels.items()
    }
    return {model: bars for model, bars in whole.items() if bars}


def _mean(bar: Bar) -> float:
    return bar[1].mean


def _few(*bars: Bar) -> str:
    """Why some bars are not to be told apart: seeds; empty where there are enough."""
    return too_few(min(row.seeds for _, row in bars))


def _close(low: Bar, high: Bar) -> bool:
    """Whether two bars differ by no more than both their standard deviations."""
    return _mean(high) - _mean(low) <= (low[1].std or 0) + (high[1].std or 0)


def _span(study: Study, bars: list[Bar], unit: str, verb: str) -> str:
    """``from 0.91 ± 0.01 (3) (ddp) to 0.93 ± 0.02 (3) (eager)``, or ``all reached 0.93``.

    Means that read alike are a tie: nobody should look for a difference between equal numbers.
    """

    def mean(bar: Bar) -> str:
        return study.show(bar[1], "mean", unit)

    def said(chosen: Bar) -> str:
        tied = [bar_label(study, bar[0]) for bar in bars if mean(bar) == mean(chosen)]
        return f"{study.reproduced(chosen[1], unit)} ({listed(tied)})"

    ordered = sorted(bars, key=_mean)
    low, high = ordered[0], ordered[-1]
    if len(bars) == 1:
        return said(low)
    if mean(low) == mean(high):
        return f"all {verb} {mean(low)}"
    close = ", within the spread over seeds" if _close(low, high) else ""
    if few := _few(low, high):
        close = f", undecided with {few}"
    return f"from {said(low)} to {said(high)}{close}"


def _mean_epoch(entries: tuple[dict, ...]) -> dict:
    keys = ("epoch", "elapsed_seconds", "test_accuracy")
    return {key: fmean(entry[key] for entry in entries) for key in keys}


# ---------------------------------------------------------------- drawing


def _lengths(study: Study, name: str, title: str, caption: str, panels: Bars, metric: str) -> dict:
    """Bars from zero with the standard deviation and, at the end, the number or why none."""
    palette, unit = colours(study), study.unit(metric)

    def draw(axes: Any, bars: list[Bar]) -> None:
        labels = []
        for place, (group, row) in enumerate(bars):
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

    return bar_figure(study, name, title, caption, panels, draw, heading(metric, unit))


def _curves(study: Study, curves: Mapping[str, list], unit: str) -> Callable[[str, str], str]:
    """What draws a model's accuracy over epochs (left) and over training time (right)."""
    palette, time_unit = colours(study), study.unit("train_seconds") or "s"

    def panel(model: str, alt: str) -> str:
        def fill(figure: Any, left: Any, right: Any) -> None:
            for name, points in curves[model]:
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

        height = 1.95 + 0.2 * math.ceil(len(curves[model]) / 3)
        return svg(f"{study.name}-learning-{model}", alt, height, fill, across=2)

    return panel
