"""The first page's figure: the sources' claims, published and reproduced, on a common axis."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from parbench.reporting.drawing import INK, Panel, svg
from parbench.reporting.text import cut
from parbench.verdicts import words
from parbench.verdicts.claims import Judged
from parbench.verdicts.comparisons import Comparison
from parbench.verdicts.series import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 6.85  # inches, the text width of an A4 page
LABEL, LEFT, RIGHT, SAYS = 3.52, 3.6, 5.65, 5.84  # edges of columns, in inches
LINE, ROW, GAP, HEAD = 0.135, 0.135, 0.13, 0.17  # heights: text line, row, gap between claims, head
GOOD = "#1a9480"  # where a claim holds
LOOKS = {  # sign and colour; contrast of 3 or more on white and on the dark page
    words.HOLDS: ("✓", GOOD),
    words.FAILS: ("✗", "#d14b45"),
    words.UNDECIDED: ("?", "#7b8894"),
    words.REPORTED: ("", "#3b7dd8"),
    words.UNTESTED: ("–", "#7b8894"),
}
MIDDLE = {"va": "center_baseline"}
TICKS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50)
FINE = (0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6)
CAPTION = (
    "Each row is one comparison, of what the small print of a claim names: "
    "published (diamond) and measured here. A claim holds if the whole bar lies in "
    "the green area, does not hold if it lies outside, and is undecided if it "
    "crosses the edge. A thin line is the range of values that are too few for an "
    "interval; bars that leave the axis end in an arrow. Firm: the verdict would "
    "stand even if all claims of this report were tested as one."
)


@dataclass(frozen=True)
class Line:
    """A drawn comparison of a claim: its ``label``, and ``spoken``, its result in words."""

    label: str
    each: Comparison
    spoken: str


@dataclass(frozen=True)
class Block:
    """A claim with its number in the report, its ``test`` in words and its comparisons."""

    number: int
    judged: Judged
    test: str
    lines: tuple[Line, ...]

    @property
    def texts(self) -> tuple[list[str], list[str]]:
        """The wrapped lines of claim and test."""
        claim = f"{self.number}  {self.judged.claim.claim}"
        return textwrap.wrap(claim, 40), textwrap.wrap(self.test, 48)

    @property
    def height(self) -> float:
        """The height in inches."""
        return max(LINE * sum(map(len, self.texts)), ROW * len(self.lines), LINE * 2) + GAP

    @property
    def spoken(self) -> str:
        """Everything drawn, in words."""
        comparisons = "; ".join(f"{line.label}: {line.spoken}" for line in self.lines)
        firm = ", firm" * self.judged.firm
        judgement = f"{self.judged.verdict}{firm}: {self.judged.claim.claim}"
        return f"Claim {self.number}, {judgement} {comparisons}."


def shown(each: Comparison) -> bool:
    """Return whether a comparison has a number to draw."""
    return isinstance(each.measured, Series)


def part(head: list[str], blocks: list[Block], points: bool) -> dict:
    """Return a source's figure for report.json; ``points``: of differences, not ratios.

    ``head``: the source, then, one line each, the studies its comparisons are from.
    """
    height = sum(block.height for block in blocks) + 0.45 + HEAD * len(head)
    panel = Panel(partial(_draw, head, blocks, points), height, WIDTH)
    heading = ", ".join(head)
    alt = " ".join([f"Claims of {heading}.", *(block.spoken for block in blocks)])
    return {"alt": alt, "svg": svg(f"claims-{head[0]}", panel)}


def key() -> dict:
    """Return the key that explains the signs."""
    alt = (
        "Key: diamond, published; bar, 95 % interval; dots, restarts or seeds; upright, "
        "the most that this hardware allows; green, where the claim holds."
    )
    return {"alt": alt, "svg": svg("claims-key", Panel(_draw_key, 0.24, WIDTH))}


# ---------------------------------------------------------------- what is drawn


def _edges(block: Block, each: Comparison) -> list[float]:
    """Return the values where the verdict changes."""
    if each.boundaries:
        return list(map(each.measured.shown, each.boundaries))
    value = block.judged.claim.test.value
    value = each.ratios[0].stated if value == "published" else value
    return [] if value is None else [value]


def _limits(blocks: list[Block], points: bool) -> tuple[float, float]:
    """Return the ends of the axis: it holds all points; bars may leave it."""
    values = [0.0 if points else 1.0]
    for block in blocks:
        for each in (line.each for line in block.lines):
            marks = (each.measured.mean, each.published, each.bound)
            values += [*each.measured.points, *_edges(block, each), *filter(None, marks)]
    low, high = min(values), max(values)
    if points:
        room = max(0.06 * (high - low), 0.002)
        return low - room, high + room
    room = max(1.04, (high / low) ** 0.06)
    return low / room, high * room


def _draw(head: list[str], blocks: list[Block], points: bool, figure: Figure) -> None:
    from matplotlib.transforms import blended_transform_factory

    figure.set_layout_engine("none")  # columns have fixed positions
    height = figure.get_figheight()
    top, bottom = (0.07 + HEAD * len(head)) / height, 0.38 / height
    box = (LEFT / WIDTH, bottom, (RIGHT - LEFT) / WIDTH, 1 - top - bottom)
    axes = figure.add_axes(box)
    low, high = _limits(blocks, points)
    axes.set(xlim=(low, high), ylim=(sum(block.height for block in blocks), 0), yticks=[])
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
    for x, text in ((0, head[0]), (SAYS, "Verdict")):
        above = -0.06 - HEAD * (len(head) - 1)
        axes.text(x, above, text, transform=transform, weight="bold", fontsize=8.5, va="bottom")
    for index, text in enumerate(reversed(head[1:])):
        axes.text(0, -0.06 - HEAD * index, text, transform=transform, fontsize=7, va="bottom")
    at = 0.0
    for block in blocks:
        if at:
            look = {"transform": transform, "color": INK, "lw": 0.4, "alpha": 0.3, "clip_on": False}
            axes.plot([0, WIDTH], [at, at], **look)
        _draw_block(axes, block, at + GAP / 2, transform)
        at += block.height


def _draw_block(axes: Axes, block: Block, at: float, place) -> None:
    """Draw a claim from ``at`` down: text, comparisons and verdict."""
    claim, test = block.texts
    look = {"transform": place, "va": "top"}
    axes.text(0, at, "\n".join(claim), fontsize=7.5, linespacing=1.15, **look)
    below = at + LINE * len(claim)
    axes.text(0, below, "\n".join(test), fontsize=6.3, linespacing=1.2, **look)
    verdict = f"{LOOKS[block.judged.verdict][0]} {block.judged.verdict}".strip()
    verdict = verdict.replace("tested here", "tested") + ", firm" * block.judged.firm
    for index, text in enumerate(textwrap.wrap(verdict, 15)):
        y = at + ROW / 2 + LINE * index
        axes.text(SAYS, y, text, fontsize=7.5, weight="bold", **look | MIDDLE)
    for index, line in enumerate(block.lines):
        middle = at + ROW * (index + 0.5)
        _draw_line(axes, block, line.each, middle)
        small = {"transform": place} | MIDDLE
        axes.text(LABEL, middle, cut(line.label, 26), fontsize=6.5, ha="right", **small)
        if sign := LOOKS[line.each.verdict][0] * (len(block.lines) > 1):
            axes.text(RIGHT + 0.06, middle, sign, fontsize=7.5, weight="bold", **small)


def _draw_line(axes: Axes, block: Block, each: Comparison, at: float) -> None:
    op, edges = block.judged.claim.test.op, _edges(block, each)
    ends, half = axes.get_xlim(), ROW / 2
    if edges and each.verdict != words.UNTESTED:
        green = (ends[0] if op == "<" else edges[0], ends[1] if op == ">" else edges[-1])
        width = green[1] - green[0]
        axes.barh(at, width, left=green[0], height=ROW, color=GOOD, alpha=0.16, lw=0)
    for edge in [1.0] if op == "equal" else edges:
        axes.plot([edge, edge], [at - half, at + half], color=INK, lw=0.9)
    measured, colour = each.measured, LOOKS[each.verdict][1]
    has_interval = measured.ci_low is not None
    low, high = (
        (measured.ci_low, measured.ci_high) if has_interval else (measured.min, measured.max)
    )
    style = {"color": colour, "lw": 3.2 if has_interval else 0.8, "alpha": 0.55}
    axes.plot([low, high], [at, at], solid_capstyle="butt", **style)
    axes.plot(measured.points, [at] * measured.seeds, "o", ms=2.2, color=INK, mew=0, alpha=0.6)
    axes.plot([measured.mean] * 2, [at - 0.05, at + 0.05], color=colour, lw=1.5)
    for end, beyond, marker in ((0, low < ends[0], "<"), (1, high > ends[1], ">")):
        if beyond:
            axes.plot(ends[end], at, marker, ms=3.5, color=colour, mew=0, clip_on=False)
    if each.bound is not None:
        axes.plot([each.bound] * 2, [at - half, at + half], color="#d0700d", lw=1.8)
    if each.published is not None:
        axes.plot(each.published, at, "D", ms=3.6, mfc="none", mec=INK, mew=0.9)


def _draw_key(figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    grey = LOOKS[words.UNDECIDED][1]
    signs = {
        "published": Line2D([], [], marker="D", ms=3.6, mfc="none", mec=INK, mew=0.9, lw=0),
        "95 % interval": Line2D([], [], color=grey, lw=3.2, alpha=0.55),
        "restarts or seeds": Line2D([], [], marker="o", ms=2.2, color=INK, mew=0, lw=0),
        "the hardware's bound": Line2D([], [], marker="|", ms=8, color="#d0700d", mew=1.8, lw=0),
        "claim holds": Patch(color=GOOD, alpha=0.16, lw=0),
    }
    figure.legend(
        signs.values(),
        signs,
        loc="center left",
        ncols=6,
        fontsize=7.5,
        borderpad=0,
        handlelength=1.4,
    )
