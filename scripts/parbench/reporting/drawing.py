"""What all figures share: style, colours, one SVG a model, and their place in report.json.

matplotlib is imported where something is drawn: laying out a finished report needs none of it.
"""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from parbench.reporting.study import Study
from parbench.reporting.text import anchor, cut, hardware_text
from parbench.verdicts.groups import Group
from parbench.verdicts.rows import Row

INK = "#010203"  # becomes currentColor, so that a figure is read in the dark and on paper
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
    "ytick.major.width": 0.6,
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
Bars = Mapping[str, list[Bar]]  # by model


def figure_json(
    study: Study,
    name: str,
    title: str,
    caption: str,
    models: Iterable[str],
    draw: Callable[[str, str], str],
    columns: int = 1,
) -> dict:
    """A figure: its question, its answer, and a part a model.

    ``draw(model, alt)`` gives its SVG; ``alt`` is what a screen reader says for it.
    """
    kinds = {group.hardware.device for group in study.groups if not group.not_run}
    if len(kinds) > 1:
        caption += " CPU and GPU cells stand side by side here: compare within a kind only."
    alts = {model: f"{title} {model}" for model in models}
    return {
        "id": anchor("f", study.name, name),
        "title": title,
        "caption": caption,
        "columns": columns,
        "parts": [{"svg": draw(model, alt), "alt": alt} for model, alt in alts.items()],
    }


def svg(
    name: str,
    alt: str,
    height: float,
    draw: Callable[..., None],
    width: float = WIDTH,
    across: int = 1,
) -> str:
    """One drawing of ``width`` x ``height`` inches, which ``draw(figure, *axes)`` fills.

    Text stays text. Its ids are its own, by ``name``, which differs from all others in the report.
    """
    import matplotlib
    from matplotlib.figure import Figure

    text = io.StringIO()
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": name}), warnings.catch_warnings():
        # The reader's fonts draw whatever DejaVu lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure, *figure.subplots(1, across, squeeze=False, sharey=True)[0])
        blank = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", metadata=blank)
    return _embeddable(text.getvalue(), alt)


def _embeddable(drawn: str, alt: str) -> str:
    """What matplotlib drew, for a place in a page with others: in the page's ink, and small."""
    drawn = drawn[drawn.index("<svg") :].replace(INK, "currentColor").replace("xlink:href", "href")
    drawn = drawn.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    drawn = re.sub(r"<defs>\s*<style.*?</defs>", "", drawn, flags=re.DOTALL)
    used = set(re.findall(r'#([^")]+)', drawn))
    drawn = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", drawn)
    drawn = re.sub(r' (d|x|y|transform|points)="[^"]+"', _rounded, drawn)
    drawn = re.sub(r"font-family: [^;]+; ", "", drawn)  # of each text: said once, below
    said = f'role="img" aria-label="{html.escape(alt)}" font-family="DejaVu Sans, sans-serif"'
    drawn = drawn.replace("<svg ", f'<svg {said} stroke-linejoin="round" ', 1)
    return re.sub(r">\s+<", "><", drawn)


def _rounded(attribute: re.Match) -> str:
    """Its numbers to a tenth of a point."""
    return re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.1f}", attribute[0])


# ---------------------------------------------------------------- bars


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


def measured(study: Study, metric: str, failed: bool = False) -> Bars:
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


def rows_of_bars(axes: Any, title: str, labels: list[str], xlabel: str) -> None:
    """Prepare a plot for a row of each label, the first on top."""
    axes.set_title(cut(title, 40))
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(axis="y", width=0)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(visible=True, axis="x")
    axes.set_xlabel(xlabel)


def bar_figure(
    study: Study,
    name: str,
    title: str,
    caption: str,
    panels: Bars,
    draw: Callable[[Any, list[Bar]], None],
    xlabel: str,
) -> dict:
    """A figure of a panel a model, in two columns where labels are short: ``draw(axes, bars)``."""
    labels = {model: [bar_label(study, bar[0]) for bar in bars] for model, bars in panels.items()}
    longest = max(len(label) for each in labels.values() for label in each)
    columns = 1 if len(panels) == 1 or longest > 16 else 2

    def panel(model: str, alt: str) -> str:
        def fill(figure: Any, axes: Any) -> None:
            rows_of_bars(axes, model, labels[model], xlabel)
            draw(axes, panels[model])

        height = len(labels[model]) * 0.27 + 0.75
        return svg(f"{study.name}-{name}-{model}", alt, height, fill, WIDTH / columns)

    return figure_json(study, name, title, caption, panels, panel, columns)
