"""What all figures share: style, colors, one SVG per model, the entry in report.json.

matplotlib is imported only for drawing: laying out a finished report does not need it.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from parbench.reporting.study_results import StudyResults
from parbench.reporting.text import anchor, cut, hardware_text
from parbench.verdicts.groups import Group

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.typing import RcKeyType

INK = "#010203"  # becomes currentColor: legible on the dark page and on paper
COLORS = (  # each with a contrast of 3 or more on white and on the dark page
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
STYLE: dict[RcKeyType, object] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a model's name is not a formula
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


class FigurePart(TypedDict):
    """A part of a figure: its words for screen readers, and an SVG to embed."""

    alt: str
    svg: str


class FigureEntry(TypedDict):
    """A figure in report.json, laid out in ``columns``."""

    id: str
    title: str
    caption: str
    columns: int
    parts: list[FigurePart]


@dataclass(frozen=True)
class Panel:
    """A model's part of a figure, ``width`` x ``height`` inches; ``fill(figure)`` draws it.

    ``words``: its content, for screen readers.
    """

    fill: Callable[[Figure], None]
    height: float
    width: float = WIDTH
    words: str = ""


def figure_json(
    study: StudyResults,
    name: str,
    title: str,
    caption: str,
    panels: Mapping[str, Panel],
    columns: int = 1,
) -> FigureEntry:
    """Return a figure for report.json: title, caption and a part per model."""
    kinds = {group.hardware.device for group in study.groups if not group.not_run}
    if len(kinds) > 1:
        caption += " CPU and GPU cells are both shown here: compare within one kind only."
    parts: list[FigurePart] = [
        {
            "alt": f"{title} {model}. {panel.words}".removesuffix(". "),
            "svg": svg(f"{study.name}-{name}-{model}", panel),
        }
        for model, panel in panels.items()
    ]
    return {
        "id": anchor("f", study.name, name),
        "title": title,
        "caption": caption,
        "columns": columns,
        "parts": parts,
    }


def svg(name: str, panel: Panel) -> str:
    """Draw a panel; its unique ``name`` makes its ids unique. Text stays text."""
    import matplotlib
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    style: dict[RcKeyType, object] = {**STYLE, "svg.hashsalt": name}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        # The reader's fonts draw whatever DejaVu lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure = Figure(figsize=(panel.width, panel.height), layout="constrained")
        panel.fill(figure)
        blank = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=blank)
    return _embeddable(buffer.getvalue())


def _embeddable(drawn: str) -> str:
    """Make matplotlib's SVG embeddable: in the page's text color, and smaller."""
    drawn = drawn[drawn.index("<svg") :].replace(INK, "currentColor").replace("xlink:href", "href")
    drawn = drawn.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    drawn = re.sub(r"<defs>\s*<style.*?</defs>", "", drawn, flags=re.DOTALL)
    used_ids = set(re.findall(r'#([^")]+)', drawn))
    drawn = re.sub(r' id="([^"]+)"', lambda match: match[0] if match[1] in used_ids else "", drawn)
    drawn = re.sub(r' (d|x|y|transform|points)="[^"]+"', _rounded, drawn)
    drawn = re.sub(r"font-family: [^;]+; ", "", drawn)  # set once for all, below
    attributes = 'font-family="DejaVu Sans, sans-serif" stroke-linejoin="round"'
    drawn = drawn.replace("<svg ", f"<svg {attributes} ", 1)
    return re.sub(r">\s+<", "><", drawn)


def _rounded(attribute: re.Match) -> str:
    """Round its numbers to a tenth of a point."""
    return re.sub(r"\d+\.\d+", lambda match: f"{float(match[0]):.1f}", attribute[0])


# ---------------------------------------------------------------- labels


def bar_label(study: StudyResults, group: Group) -> str:
    """Return a group's name within its model: variant, and hardware if it varies."""
    text, key = group.variant, (group.model, group.variant)
    if sum((other.model, other.variant) == key for other in study.groups) > 1:
        text += f", {hardware_text(group.hardware)}"
    return cut(text, 24)


def colors(study: StudyResults) -> dict[str, tuple[str, str]]:
    """Return color and dash by label, the same in all figures of the study."""
    labels = dict.fromkeys(bar_label(study, group) for group in study.groups)
    return {
        label: (COLORS[index % len(COLORS)], DASHES[index // len(COLORS) % len(DASHES)])
        for index, label in enumerate(labels)
    }
