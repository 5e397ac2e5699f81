"""What all figures share: style, colours, pages of panels, and their place in report.json.

matplotlib is imported where something is drawn: laying out a finished report needs none of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from parbench.reporting.study import Study
from parbench.reporting.svg import INK, svg_part
from parbench.reporting.text import anchor, cut, hardware_text
from parbench.verdicts.groups import Group
from parbench.verdicts.rows import Row

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
WIDTH = 6.3  # inches, the text width of an A4 page
HEIGHT = 8.2  # inches; what is taller is continued in another part
PAIR_HEIGHT = 1.8  # inches of a row of two plots; their legend and margin take the rest
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
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
}
WHISKERS = {"capsize": 2.5, "lw": 0.9}

Bar = tuple[Group, Row]  # a group and its row of the metric that is drawn
Draw = Callable[[Any, list], None]  # (axes, bars)


def figure_json(study: Study, name: str, title: str, caption: str, parts: list[dict]) -> dict:
    """A figure: its question, its answer, its SVG parts."""
    kinds = {group.hardware.device for group in study.groups if not group.not_run}
    if len(kinds) > 1:
        caption += " CPU and GPU cells stand side by side here: compare within a kind only."
    return {"id": anchor("f", study.name, name), "title": title, "caption": caption, "parts": parts}


def bar_label(study: Study, group: Group) -> str:
    """A group's name within its model: the variant, and the hardware where that varies."""
    text, name = group.variant, (group.model, group.variant)
    if sum((other.model, other.variant) == name for other in study.groups) > 1:
        text += f", {hardware_text(group.hardware)}"
    return cut(text, 30)


def colours(study: Study) -> dict[str, tuple[str, str]]:
    """Colour and dash by label, the same in every figure of the study."""
    labels = dict.fromkeys(bar_label(study, group) for group in study.groups)
    return {
        name: (COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)])
        for i, name in enumerate(labels)
    }


def measured(study: Study, metric: str, failed: bool = False) -> dict[str, list[Bar]]:
    """Every group with a number of the metric, by model.

    With ``failed`` also those that ran and have none: the mean of their row is None. Instrumented
    groups stand apart.
    """
    panels: dict[str, list[Bar]] = {}
    for group in study.groups:
        row = study.row(group, metric)
        if row is None or group.training.profile != "none":
            continue
        if row.mean is not None or (failed and len(group.ok) < len(group.runs)):
            panels.setdefault(group.model, []).append((group, row))
    return panels


# ---------------------------------------------------------------- pages


def paged(sizes: Mapping[str, float], room: float = HEIGHT) -> list[list[str]]:
    """Names of panels, by height in inches, page by page in their order."""
    pages: list[list[str]] = [[]]
    for name, size in sizes.items():
        if pages[-1] and sum(sizes[other] for other in pages[-1]) + size > room:
            pages.append([])
        pages[-1].append(name)
    return pages


def draw_part(
    name: str,
    alt: str,
    heights: list[float],
    across: int,
    draw: Callable[[Any, Any], None],
    *,
    legend: float = 0.0,
    **more: Any,
) -> dict:
    """One SVG part: ``draw(figure, grid)`` fills rows of ``heights`` inches, ``across`` in each.

    ``legend``: inches below them; ``more``: settings of ``STYLE`` and, as `sharey`, of the grid.
    """
    import matplotlib
    from matplotlib.figure import Figure

    sharey = more.pop("sharey", False)
    with matplotlib.rc_context(STYLE | more):
        figure = Figure(figsize=(WIDTH, sum(heights) + legend), layout="constrained")
        grid = figure.subplots(
            len(heights), across, squeeze=False, sharey=sharey, height_ratios=heights
        )
        draw(figure, grid)
        return svg_part(figure, name, alt)


def draw_panels(
    study: Study, name: str, alt: str, panels: Mapping[str, list], draw: Draw, xlabel: str
) -> list[dict]:
    """Small multiples, a panel a model, in as many parts as pages need.

    A panel is a list of bars, whose first member is a group.
    """
    longest = max(len(bar_label(study, bar[0])) for bars in panels.values() for bar in bars)
    across = 1 if len(panels) == 1 or longest > 16 else 2
    models = list(panels)
    lines = {models[i]: models[i : i + across] for i in range(0, len(models), across)}
    sizes = {
        first: max(len(panels[model]) for model in line) * 0.27 + 0.75
        for first, line in lines.items()
    }

    def fill(axes: Any, model: str) -> None:
        bars = panels[model]
        axes.set_title(cut(model, 60 // across))
        axes.set_yticks(range(len(bars)), [bar_label(study, bar[0]) for bar in bars])
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.grid(visible=True, axis="x")
        axes.set_xlabel(xlabel)
        draw(axes, bars)

    parts = []
    for number, page in enumerate(paged(sizes), 1):

        def draw_page(figure: Any, grid: Any, page: list[str] = page) -> None:
            for row, first in zip(grid, page, strict=True):
                for axes in row[len(lines[first]) :]:
                    axes.set_axis_off()
                for axes, model in zip(row, lines[first], strict=False):
                    fill(axes, model)

        heights = [sizes[first] for first in page]
        parts.append(draw_part(f"{study.name}-{name}-{number}", alt, heights, across, draw_page))
    return parts


def draw_pairs(
    study: Study,
    name: str,
    alt: str,
    models: list[str],
    names_of: Callable[[str], Iterable[str]],
    draw: Callable[[Any, Any, str, dict], None],
    **more: Any,
) -> list[dict]:
    """Two plots side by side, a row a model, with one legend below.

    ``draw(left, right, model, handles)`` adds to ``handles`` what the legend shows; ``names_of`` a
    model says how many entries to leave room for.
    """
    each = max(1, int(HEIGHT / (PAIR_HEIGHT + 0.1)) - 1)
    parts = []
    for number, start in enumerate(range(0, len(models), each), 1):
        page = models[start : start + each]

        def draw_page(figure: Any, grid: Any, page: list[str] = page) -> None:
            handles: dict[str, Any] = {}
            for (left, right), model in zip(grid, page, strict=True):
                draw(left, right, model, handles)
                for axes in (left, right):
                    axes.grid(visible=True)
            figure.legend(handles.values(), handles, loc="outside lower left", ncols=3)

        names = {label for model in page for label in names_of(model)}
        parts.append(
            draw_part(
                f"{study.name}-{name}-{number}",
                alt,
                [PAIR_HEIGHT] * len(page),
                2,
                draw_page,
                legend=0.2 * math.ceil(len(names) / 3) + 0.15,
                **{"ytick.major.width": 0.6, **more},
            )
        )
    return parts
