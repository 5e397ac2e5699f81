"""What gains more: one device used well, or a second one with unchanged settings."""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from parbench.reporting.drawing import COLOURS, INK, WIDTH, Panel, bar_label, figure_json
from parbench.reporting.study import Study
from parbench.reporting.text import cut, ratio_text
from parbench.verdicts.groups import Group

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "One device well, or a second one?"


def second_device_figure(study: Study) -> dict | None:
    """Return the figure of measured pairs with a baseline; None without any, or if the study names
    no variant with a second device."""
    second = study.study.get("second_device")
    by_baseline: dict[str, list[Group]] = {}  # by their baseline
    for group in study.own if second else ():
        pair = group.pairs.get(group.baseline)
        if group.baseline != group.id and pair is not None and pair.restarts:
            by_baseline.setdefault(group.baseline, []).append(group)
    models = [study.by_id[baseline].model for baseline in by_baseline]
    panels = {}
    for baseline, groups in by_baseline.items():
        name = _name(study.by_id[baseline], models)
        panels[name] = Panel(partial(_draw, study, name, groups), 0.9 + 0.24 * len(groups), WIDTH)
    if not panels:
        return None
    caption = (
        "Speed relative to one device with unchanged settings, from pairs measured in "
        "turn, with the 95 % interval (none below 4 restarts). The last row and the "
        "dashed line are a second device with unchanged settings. Compiling happens "
        "before the clock starts; its seconds per start are given separately."
    )
    return figure_json(study, "second-device", TITLE, caption, panels)


def _name(baseline: Group, models: list[str]) -> str:
    """Return the model's name, with settings if several baselines share it."""
    if models.count(baseline.model) == 1:
        return baseline.model
    used = baseline.training
    return f"{baseline.model}, {used.optimizer}, {used.precision}, batch {used.global_batch}"


def _draw(study: Study, name: str, groups: list[Group], figure: Figure) -> None:
    """Draw a row per variant; the second device comes last."""
    second = study.study["second_device"]
    rows = sorted(groups, key=lambda group: group.variant == second)
    axes = figure.subplots()
    for position, group in enumerate(rows):
        series = group.pairs[group.baseline].series
        is_second = group.variant == second
        colour = COLOURS[1] if is_second else COLOURS[0]
        axes.plot(series.mean, position, "o", ms=5, color=colour)
        if not series.too_few:
            axes.plot([series.ci_low, series.ci_high], [position, position], lw=2, color=colour)
        if is_second:
            axes.axvline(series.mean, color=colour, lw=0.8, ls="--")
        axes.annotate(
            f"{ratio_text(series.mean)}×{_compiling(group)}",
            (1.01, position),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=7,
        )
    axes.axvline(1.0, color=INK, lw=0.6)
    axes.set_yticks(range(len(rows)), [bar_label(study, group) for group in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=True, axis="x")
    axes.set_title(cut(name, 40))
    axes.set_xlabel("Speed relative to one device with unchanged settings")


def _compiling(group: Group) -> str:
    """Return the mean compile time in words, if any."""
    seconds = [run["compile_seconds"] for run in group.ok if run.get("compile_seconds") is not None]
    return f", compiled {fmean(seconds):.0f} s" if seconds else ""
