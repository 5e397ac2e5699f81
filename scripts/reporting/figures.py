"""The four figures of a study: each a question, an answer in its caption, and SVG parts.

matplotlib is imported where something is drawn: laying out a finished report needs none of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean
from typing import Any

from reporting.study import Study, bound
from reporting.svg import INK, svg_part
from reporting.text import (
    anchor,
    convert,
    cut,
    hardware_text,
    heading,
    listed,
    ratio_text,
    unit_text,
)
from seeds import DECIDE_FROM, too_few

COLOURS = (  # each with a contrast of 3 or more on white and on the dark page
    "#3b7dd8",
    "#d0700d",
    "#1a9480",
    "#c2559d",
    "#8a6fd1",
    "#d14b45",
    "#7f8a1a",
    "#7b8894",
)
DASHES = ("-", "--", ":", "-.")
FIGURE_WIDTH = 6.3  # inches, the text width of an A4 page
PART_HEIGHT = 8.2  # inches; what is taller is continued in another part
STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a model's name is no formula
    "font.family": "DejaVu Sans",  # comes with matplotlib: the layout is the same everywhere
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "grid.linewidth": 0.5,
    "grid.alpha": 0.16,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.0,
    **{
        key: INK
        for key in (
            "text.color",
            "axes.edgecolor",
            "axes.labelcolor",
            "axes.titlecolor",
            "xtick.color",
            "ytick.color",
            "grid.color",
        )
    },
}
WHISKERS = {"capsize": 2.5, "lw": 0.9}

Bar = tuple[dict, dict]  # a group and its row of the metric that is drawn
Panels = dict[str, list[Bar]]  # by model


def figures(study: Study) -> list[dict]:
    """The study's four figures; none for a study of which no cell ended well."""
    if not any(metrics["status"] == "ok" for metrics in study.metrics.values()):
        return []
    made = (time_figure, speedup_figure, learning_figure, memory_figure)
    return [figure for figure in (make(study) for make in made) if figure]


# --------------------------------------------------------------------------- questions, answers


def time_figure(study: Study) -> dict | None:
    """Which strategy trains fastest?"""
    metric = "train_seconds"
    panels = _of_whole_epochs(measured(study, metric))
    if not panels:
        return None
    unit = study.unit(metric)
    answers = []
    for model, bars in panels.items():
        best, *others = sorted(bars, key=_mean)
        text = f"{bar_label(study, best[0])} for {model} ({study.reproduced(best[1], unit)} "
        text += unit_text(unit)
        if others:
            name = bar_label(study, others[0][0])
            if few := _few(best, others[0]):
                text += f"; next {name}, undecided with {few}"
            elif _close(best, others[0]):
                text += f"; {name} is within the spread"
            else:
                times = ratio_text(_mean(others[0]) / _mean(best))
                text += f"; next {name}, {times} times as long"
        answers.append(text + ")")
    caption = f"Least training time: {listed(answers)}."
    panels = _of_whole_epochs(measured(study, metric, failed=True))
    parts = _draw_bars(study, "time", caption, panels, metric)
    return figure_json(study, "time", "Which strategy trains fastest?", caption, parts)


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
            mean, (below, above) = row["mean"], study.whiskers(row, "x")
            dot = {"fmt": "o", "ms": 5, "color": palette[bar_label(study, group)][0]}
            axes.errorbar(mean, place, xerr=[[below], [above]], ecolor=INK, **dot, **WHISKERS)
            top = max(top, most, mean + above, band[1] if band else 1.0)
        axes.axvline(1, color=INK, lw=0.7, ls=":")
        axes.set_xlim(0, top * 1.06)

    parts = draw_panels(study, "speedup", caption, panels, draw, "Speedup (×)")
    return figure_json(study, "speedup", "Does it scale?", caption, parts)


def learning_figure(study: Study) -> dict | None:
    """Does it learn the same? Accuracy over epochs and over seconds, a row a model."""
    curves: dict[str, list[tuple[str, list[dict]]]] = {}
    for group in study.own:
        runs = [study.metrics[cell] for cell in study.cells(group)]
        histories = [run["history"] for run in runs if run["status"] == "ok" and run["history"]]
        training = group["training"]
        if histories and training["profile"] == "none" and training["steps"] is None:
            mean = [_mean_epoch(entries) for entries in zip(*histories, strict=False)]
            curves.setdefault(group["model"], []).append((bar_label(study, group), mean))
    if not curves:
        return None
    metric = "test_accuracy"
    unit = study.unit(metric)
    answers = [
        f"for {model} {_span(study, bars, unit, 'reached')}"
        for model, bars in measured(study, metric).items()
    ]
    caption = f"Final accuracy ({unit_text(unit)}): {listed(answers)}. Lines: mean over seeds."
    parts = _draw_curves(study, caption, curves, unit)
    return figure_json(study, "learning", "Does it learn the same?", caption, parts)


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
    parts = _draw_bars(study, "memory", caption, panels, metric)
    return figure_json(study, "memory", "What does it cost in memory?", caption, parts)


def figure_json(study: Study, name: str, title: str, caption: str, parts: list[dict]) -> dict:
    """A figure: its question, its answer, its SVG parts."""
    if len({group["hardware"]["device"] for group in study.groups if not group["not_run"]}) > 1:
        caption += " CPU and GPU cells stand side by side here: compare within a kind only."
    return {"id": anchor("f", study.name, name), "title": title, "caption": caption, "parts": parts}


# --------------------------------------------------------------------------- groups as bars


def measured(study: Study, metric: str, failed: bool = False) -> Panels:
    """Every group with a number of the metric, by model.

    With ``failed`` also those that ran and have none: the mean of their row is None. Instrumented
    groups stand apart.
    """
    panels: Panels = {}
    for group in study.groups:
        row = study.row(group, metric)
        if row is None or group["training"]["profile"] != "none":
            continue
        if row["mean"] is not None or (failed and study.status(group) not in ("ok", "not run")):
            panels.setdefault(group["model"], []).append((group, row))
    return panels


def _of_whole_epochs(panels: Panels) -> Panels:
    """Without the groups that measure some steps only: their times are of other work."""
    whole = {
        model: [bar for bar in bars if bar[0]["training"]["steps"] is None]
        for model, bars in panels.items()
    }
    return {model: bars for model, bars in whole.items() if bars}


def bar_label(study: Study, group: dict) -> str:
    """A group's name within its model: the variant, and the hardware where that varies."""
    name = (group["model"], group["variant"])
    text = group["variant"]
    if sum((other["model"], other["variant"]) == name for other in study.groups) > 1:
        text += f", {hardware_text(group['hardware'])}"
    return cut(text, 30)


def colours(study: Study) -> dict[str, tuple[str, str]]:
    """Colour and dash by label, the same in every figure of the study."""
    labels = dict.fromkeys(bar_label(study, group) for group in study.groups)
    return {
        name: (COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)])
        for i, name in enumerate(labels)
    }


def _mean(bar: Bar) -> float:
    return bar[1]["mean"]


def _few(*bars: Bar) -> str:
    """Why some bars are not to be told apart: seeds; empty where there are enough."""
    return too_few(min(row["n_seeds"] for _, row in bars))


def _ends(bars: list[Bar]) -> tuple[Bar, Bar]:
    """The lowest and the highest of some bars."""
    ordered = sorted(bars, key=_mean)
    return ordered[0], ordered[-1]


def _close(low: Bar, high: Bar) -> bool:
    """Whether two bars differ by no more than both their standard deviations."""
    return _mean(high) - _mean(low) <= (low[1]["std"] or 0) + (high[1]["std"] or 0)


def _span(study: Study, bars: list[Bar], unit: str, verb: str) -> str:
    """``from 0.91 ± 0.01 (3) (ddp) to 0.93 ± 0.02 (3) (eager)``, or ``all reached 0.93``.

    Means that read alike are a tie: nobody should look for a difference between equal numbers.
    """

    def mean(bar: Bar) -> str:
        return study.show(bar[1], "mean", unit)

    def said(chosen: Bar) -> str:
        tied = [bar_label(study, bar[0]) for bar in bars if mean(bar) == mean(chosen)]
        return f"{study.reproduced(chosen[1], unit)} ({listed(tied)})"

    low, high = _ends(bars)
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


# --------------------------------------------------------------------------- drawing


def _draw_bars(study: Study, name: str, alt: str, panels: Panels, metric: str) -> list[dict]:
    """Bars from zero with the standard deviation and, at the end, the number or why none."""
    palette, unit = colours(study), study.unit(metric)

    def draw(axes: Any, bars: list[Bar]) -> None:
        labels = []
        for place, (group, row) in enumerate(bars):
            if row["mean"] is None:
                labels.append((0.0, study.status(group)))
                continue
            value = convert(row["mean"], row["unit"], unit)
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

    return draw_panels(study, name, alt, panels, draw, heading(metric, unit))


def draw_panels(
    study: Study,
    name: str,
    alt: str,
    panels: Panels,
    draw: Callable[[Any, list[Bar]], None],
    xlabel: str,
) -> list[dict]:
    """Small multiples, a panel a model, in as many parts as pages need. ``draw(axes, bars)``."""
    import matplotlib
    from matplotlib.figure import Figure

    longest = max(len(bar_label(study, bar[0])) for bars in panels.values() for bar in bars)
    across = 1 if len(panels) == 1 or longest > 16 else 2
    models = list(panels)
    lines = [models[i : i + across] for i in range(0, len(models), across)]
    height = [max(len(panels[model]) for model in line) * 0.27 + 0.75 for line in lines]
    parts: list[list[int]] = [[]]
    for index in range(len(lines)):
        if parts[-1] and sum(height[i] for i in parts[-1]) + height[index] > PART_HEIGHT:
            parts.append([])
        parts[-1].append(index)
    drawn = []
    with matplotlib.rc_context(STYLE):
        for number, part in enumerate(parts, 1):
            sizes = [height[i] for i in part]
            figure = Figure(figsize=(FIGURE_WIDTH, sum(sizes)), layout="constrained")
            grid = figure.subplots(len(part), across, squeeze=False, height_ratios=sizes)
            for row, index in zip(grid, part, strict=True):
                for axes in row[len(lines[index]) :]:
                    axes.set_axis_off()
                for axes, model in zip(row, lines[index], strict=False):
                    bars = panels[model]
                    axes.set_title(cut(model, 60 // across))
                    axes.set_yticks(range(len(bars)), [bar_label(study, bar[0]) for bar in bars])
                    axes.set_ylim(len(bars) - 0.4, -0.6)
                    axes.grid(visible=True, axis="x")
                    axes.set_xlabel(xlabel)
                    draw(axes, bars)
            drawn.append(svg_part(figure, f"{study.name}-{name}-{number}", alt))
    return drawn


def _draw_curves(study: Study, alt: str, curves: dict, unit: str) -> list[dict]:
    """Accuracy over epochs (left) and over training time (right), a row a model."""
    import matplotlib
    from matplotlib.figure import Figure

    palette, time_unit = colours(study), study.unit("train_seconds") or "s"
    models = list(curves)
    each = max(1, int(PART_HEIGHT / 1.9) - 1)
    drawn = []
    with matplotlib.rc_context(STYLE | {"ytick.major.width": 0.6}):
        for number, start in enumerate(range(0, len(models), each), 1):
            part = models[start : start + each]
            names = {name for model in part for name, _ in curves[model]}
            legend_height = 0.2 * math.ceil(len(names) / 3) + 0.15
            figure = Figure((FIGURE_WIDTH, 1.8 * len(part) + legend_height), layout="constrained")
            grid = figure.subplots(len(part), 2, squeeze=False, sharey="row")
            handles = {}
            for (left, right), model in zip(grid, part, strict=True):
                for name, points in curves[model]:
                    heights = [convert(p["test_accuracy"], "fraction", unit) for p in points]
                    epochs = [p["epoch"] for p in points]
                    times = [convert(p["elapsed_seconds"], "s", time_unit) for p in points]
                    look = dict(zip(("color", "ls"), palette[name], strict=True))
                    look |= {"lw": 1.4, "ms": 2.6, "marker": "o" if len(points) < 16 else ""}
                    (handles[name],) = left.plot(epochs, heights, **look)
                    right.plot(times, heights, **look)
                left.set_title(cut(model, 30))
                left.set_ylabel(heading("test_accuracy", unit))
                left.set_xlabel("Epoch")
                left.xaxis.get_major_locator().set_params(integer=True)
                right.set_xlabel(f"Training time ({unit_text(time_unit)})")
                for axes in (left, right):
                    axes.grid(visible=True)
            figure.legend(handles.values(), handles, loc="outside lower left", ncols=3)
            drawn.append(svg_part(figure, f"{study.name}-learning-{number}", alt))
    return drawn
