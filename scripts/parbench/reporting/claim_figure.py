"""The first page's figure: the sources' claims, published and reproduced, on a common axis."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from parbench.reporting import glossary
from parbench.reporting.drawing import INK, FigurePart, Panel, svg
from parbench.reporting.text import cut
from parbench.verdicts import terms
from parbench.verdicts.claims import Judged, JudgedPart
from parbench.verdicts.comparisons import Comparison
from parbench.verdicts.sequential import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HERE, VERDICT = "Here", "Verdict"  # heads of columns
WIDTH = 6.85  # inches, the text width of an A4 page
LABEL, LEFT, RIGHT, SAYS = 3.52, 3.6, 5.6, 5.92  # edges of columns, in inches
LINE, ROW, GAP, HEAD = 0.135, 0.135, 0.13, 0.17  # heights: text line, row, gap between claims, head
KEY = 0.24  # the key without its lines on signs
TALLEST = 4.4  # inches for a part's claims; the PDF breaks pages between parts
GOOD = "#1a9480"  # where a claim holds
BAD, GREY, BLUE, AMBER = "#d14b45", "#7b8894", "#3b7dd8", "#b36b00"
LOOKS = {  # sign and color; contrast of 3 or more on white and on the dark page
    **dict.fromkeys((terms.HOLDS, terms.AS_CLAIMED), ("✓", GOOD)),
    **dict.fromkeys((terms.HOLDS_IN_DIRECTION, terms.HOLDS_IN_PART), ("(✓)", AMBER)),
    **dict.fromkeys((terms.FAILS, *terms.AGAINST_SOURCE, *terms.REFUTED), ("✗", BAD)),
    terms.UNDECIDED: ("?", GREY),
    terms.REPORTED: ("", BLUE),
    **dict.fromkeys((terms.NOT_TESTED, *terms.UNJUDGED), ("–", GREY)),
}
SIZE_SIGNS = {  # beside a direction as claimed
    terms.AS_PUBLISHED: "=",
    terms.SMALLER: "<",
    terms.LARGER: ">",
    terms.NOT_TOLD_APART: "~",
    terms.CANNOT_BE_SHOWN: "",
}
MARKS = {  # what each sign in the column "Here" means
    "✓": "as claimed",
    "✗": "not as claimed",
    "?": "undecided",
    "–": "not judged",
    "=": "size as published",
    "<": "smaller than published",
    ">": "larger than published",
    "~": "size not told apart",
}
BEYOND = 3.0  # a published ratio more than this factor beyond all others leaves the axis
TICKS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50)
FINE = (0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6)
CAPTION = (
    "Each row is one comparison of a claim: published (diamond) and measured here. It has two "
    "answers, whose signs are in the column Here; the verdict is on the whole claim. The direction "
    "is as claimed (✓) if the whole bar lies in the green area, is not "
    "(✗) if it lies outside or within the margin of no difference, and otherwise undecided (?). "
    "The size is as published (=), "
    "smaller (<), that is closer to no effect, larger (>), or not told apart (~). A thin line "
    "shows the range where values are too few for an interval; an arrow marks what is beyond the "
    "axis. Three things can overturn a verdict: more values that move it out of its area, "
    "a biased A/A pair, and a restart or seed that fails. " + glossary.sentence(glossary.FIRM)
)


@dataclass(frozen=True)
class ClaimLine:
    """A comparison of a claim as drawn: its ``label``, its measured ``series``, and its result in
    words, ``alt_text``."""

    label: str
    part: JudgedPart
    each: Comparison
    series: Series
    alt_text: str

    @property
    def marks(self) -> tuple[str, str]:
        """The signs of both answers, each of which may be empty."""
        return LOOKS[self.each.verdict][0], SIZE_SIGNS.get(self.each.size, "")


@dataclass(frozen=True)
class ClaimBlock:
    """A claim with its number in the report, its ``test`` in words and its comparisons."""

    number: int
    judged: Judged
    test: str
    lines: tuple[ClaimLine, ...]

    @property
    def marks(self) -> set[str]:
        """The signs beside its comparisons."""
        return {sign for line in self.lines for sign in line.marks}

    @property
    def texts(self) -> tuple[list[str], list[str]]:
        """The wrapped lines of claim and test."""
        claim = f"{self.number}  {self.judged.claim.claim}"
        return textwrap.wrap(claim, 40), textwrap.wrap(self.test, 48)

    @property
    def height(self) -> float:
        """The height in inches."""
        rows = max(sum(map(len, self.texts)), len(self.verdict), 2)
        return max(LINE * rows, ROW * len(self.lines)) + GAP

    @property
    def verdict(self) -> list[str]:
        """The wrapped lines of the verdict, with its scope."""
        sign = LOOKS[self.judged.verdict][0]
        text = f"{sign} {self.judged.sentence}".strip() + ", firm" * self.judged.firm
        return textwrap.wrap(text, 15)

    @property
    def alt_text(self) -> str:
        """Everything drawn, in words."""
        comparisons = "; ".join(f"{line.label}: {line.alt_text}" for line in self.lines)
        firm = ", firm" * self.judged.firm
        judgement = f"{self.judged.sentence}{firm}: {self.judged.claim.claim}"
        return f"Claim {self.number}, {judgement} {comparisons}."


def parts(head: str, blocks: list[ClaimBlock], points: bool) -> list[FigurePart]:
    """Return the figure of the study ``head``, as parts that share an axis and break between pages.

    ``points``: whether the comparisons are differences, in points, rather than ratios.
    """
    rows: list[list[ClaimBlock]] = [[]]
    for block in blocks:
        if rows[-1] and sum(each.height for each in [*rows[-1], block]) > TALLEST:
            rows.append([])
        rows[-1].append(block)
    limits = _limits(blocks, points)
    return [_part(head, number, each, points, limits) for number, each in enumerate(rows)]


def _part(
    head: str, number: int, blocks: list[ClaimBlock], points: bool, limits: tuple[float, float]
) -> FigurePart:
    height = sum(block.height for block in blocks) + 0.45 + HEAD
    panel = Panel(partial(_draw, head, blocks, points, limits), height, WIDTH)
    alt = " ".join([f"Claims tested by {head}.", *(block.alt_text for block in blocks)])
    return {"alt": alt, "svg": svg(f"claims-{head}-{number}", panel)}


def key(blocks: list[ClaimBlock]) -> FigurePart:
    """Return the key that explains what is drawn, and those signs that ``blocks`` have."""
    used = {mark for block in blocks for mark in block.marks}
    marks = [f"{mark} {meaning}" for mark, meaning in MARKS.items() if mark in used]
    # Blanks within an entry must not break.
    entries = ", ".join(mark.replace(" ", "\u00a0") for mark in marks)
    lines = textwrap.wrap(entries, 115, break_on_hyphens=False)
    alt = (
        "Key: diamond, published; bar, 95 % interval; dots, restarts or seeds; vertical "
        "line, the bound of the devices here; green, where the direction is as claimed."
        + f" {HERE}: {'; '.join(marks)}."
        * bool(marks)
    )
    height = KEY + LINE * len(lines)
    return {"alt": alt, "svg": svg("claims-key", Panel(partial(_draw_key, lines), height, WIDTH))}


# ---------------------------------------------------------------- what is drawn


def _edges(line: ClaimLine) -> list[float]:
    """Return the values where the direction changes."""
    if line.each.boundaries:
        return list(map(line.series.shown, line.each.boundaries))
    none = 0.0 if line.part.test.is_of_differences else 1.0
    return [none] if line.part.test.op in (">", "<") else []


def _drawn(each: Comparison) -> list[float]:
    """Return the published numbers to draw, without the open end of a range."""
    return list(filter(math.isfinite, each.published))


def _limits(blocks: list[ClaimBlock], points: bool) -> tuple[float, float]:
    """Return the ends of the axis, which contains all points; bars, and published numbers far
    beyond everything else, may leave it."""
    values, published = [0.0 if points else 1.0], []
    for line in (line for block in blocks for line in block.lines):
        marks = (line.series.mean, line.each.bound)
        values += [*line.series.points, *_edges(line), *filter(None, marks)]
        published += _drawn(line.each)
    low, high = min(values), max(values)
    if points:
        low, high = min([low, *published]), max([high, *published])
        room = max(0.06 * (high - low), 0.002)
        return low - room, high + room
    near = [each for each in published if low / BEYOND <= each <= high * BEYOND]
    low, high = min([low, *near]), max([high, *near])
    room = max(1.04, (high / low) ** 0.06)
    return low / room, high * room


def _draw(
    head: str, blocks: list[ClaimBlock], points: bool, limits: tuple[float, float], figure: Figure
) -> None:
    from matplotlib.transforms import blended_transform_factory

    figure.set_layout_engine("none")  # columns have fixed positions
    height = figure.get_figheight()
    top, bottom = (0.07 + HEAD) / height, 0.38 / height
    box = (LEFT / WIDTH, bottom, (RIGHT - LEFT) / WIDTH, 1 - top - bottom)
    axes = figure.add_axes(box)
    low, high = limits
    axes.set(xlim=limits, ylim=(sum(block.height for block in blocks), 0), yticks=[])
    if points:
        axes.xaxis.set_major_formatter(
            lambda value, _: f"{100 * value:+.4g}".replace("-", "−") if value else "0"
        )
        axes.locator_params(axis="x", nbins=6)
    else:
        axes.set_xscale("log")
        ticks = [tick for tick in (FINE if high / low < 2.2 else TICKS) if low <= tick <= high]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.spines["left"].set_visible(False)
    axes.tick_params(labelsize=7)
    axes.grid(visible=True, axis="x")
    unit = "Difference (percentage points)" if points else "Ratio (logarithmic)"
    axes.set_xlabel(unit, fontsize=7)
    transform = blended_transform_factory(figure.dpi_scale_trans, axes.transData)
    for x, text, side in ((0, head, "left"), (SAYS - 0.07, HERE, "right"), (SAYS, VERDICT, "left")):
        look = {"transform": transform, "weight": "bold", "fontsize": 8.5, "va": "bottom"}
        axes.text(x, -0.06, text, ha=side, **look)
    at = 0.0
    for block in blocks:
        if at:
            look = {"transform": transform, "color": INK, "lw": 0.4, "alpha": 0.3, "clip_on": False}
            axes.plot([0, WIDTH], [at, at], **look)
        _draw_block(axes, block, at + GAP / 2, transform)
        at += block.height


def _draw_block(axes: Axes, block: ClaimBlock, at: float, place) -> None:
    """Draw a claim from ``at`` down: text, comparisons and verdict."""
    claim, test = block.texts
    top = partial(axes.text, transform=place, va="top")
    middle = partial(axes.text, transform=place, va="center_baseline")
    top(0, at, "\n".join(claim), fontsize=7.5, linespacing=1.15)
    top(0, at + LINE * len(claim), "\n".join(test), fontsize=6.3, linespacing=1.2)
    for index, text in enumerate(block.verdict):
        y = at + ROW / 2 + LINE * index
        middle(SAYS, y, text, fontsize=6.5, weight="bold")
    for index, line in enumerate(block.lines):
        y = at + ROW * (index + 0.5)
        _draw_line(axes, line, y)
        middle(LABEL, y, cut(line.label, 26), fontsize=6.5, ha="right")
        middle(RIGHT + 0.06, y, "".join(line.marks), fontsize=7.5, weight="bold")


def _draw_line(axes: Axes, line: ClaimLine, at: float) -> None:
    each, op, edges = line.each, line.part.test.op, _edges(line)
    ends, half = axes.get_xlim(), ROW / 2
    if edges and each.is_judged:
        green = (ends[0] if op == "<" else edges[0], ends[1] if op == ">" else edges[-1])
        width = green[1] - green[0]
        axes.barh(at, width, left=green[0], height=ROW, color=GOOD, alpha=0.16, lw=0)
    for edge in edges:
        axes.plot([edge, edge], [at - half, at + half], color=INK, lw=0.9)
    series, color = line.series, LOOKS[each.verdict][1]
    low, high = series.outer
    width = 3.2 if series.ends else 0.8
    axes.plot([low, high], [at, at], solid_capstyle="butt", color=color, lw=width, alpha=0.55)
    axes.plot(series.points, [at] * series.seeds, "o", ms=2.2, color=INK, mew=0, alpha=0.6)
    axes.plot([series.known_mean] * 2, [at - 0.05, at + 0.05], color=color, lw=1.5)
    for end, beyond, marker in ((0, low < ends[0], "<"), (1, high > ends[1], ">")):
        if beyond:
            axes.plot(ends[end], at, marker, ms=3.5, color=color, mew=0, clip_on=False)
    if each.bound is not None:
        axes.plot([each.bound] * 2, [at - half, at + half], color="#d0700d", lw=1.8)
    look = {"mfc": "none", "mec": INK, "mew": 0.9, "clip_on": False}
    for number in _drawn(each):
        if ends[0] <= number <= ends[1]:
            axes.plot(number, at, "D", ms=3.6, **look)
        else:
            end, marker, side = (1, ">", "right") if number > ends[1] else (0, "<", "left")
            axes.plot(ends[end], at, marker, ms=4, **look)
            small = {"fontsize": 5.5, "va": "center", "ha": side}
            shift = (-5 if end else 5, 0)
            axes.annotate(f"{number:g}", (ends[end], at), shift, "data", "offset points", **small)


def _draw_key(lines: list[str], figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    grey = LOOKS[terms.UNDECIDED][1]
    signs = {
        "published": Line2D([], [], marker="D", ms=3.6, mfc="none", mec=INK, mew=0.9, lw=0),
        "95 % interval": Line2D([], [], color=grey, lw=3.2, alpha=0.55),
        "restarts or seeds": Line2D([], [], marker="o", ms=2.2, color=INK, mew=0, lw=0),
        "bound of the devices here": Line2D(
            [], [], marker="|", ms=8, color="#d0700d", mew=1.8, lw=0
        ),
        "direction as claimed": Patch(color=GOOD, alpha=0.16, lw=0),
    }
    figure.legend(
        signs.values(),
        signs,
        loc="upper left",
        ncols=6,
        fontsize=7.5,
        borderpad=0,
        handlelength=1.4,
    )
    height = figure.get_figheight()
    for index, line in enumerate(lines):
        y = (height - KEY - LINE * (index + 0.3)) / height
        head = f"{HERE}:" if index == 0 else ""
        look = {"fontsize": 7.5, "va": "center"}
        figure.text(0.07 / WIDTH, y, head, weight="bold", **look)
        figure.text(0.47 / WIDTH, y, line, **look)
