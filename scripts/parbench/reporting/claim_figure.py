"""The first page's figure: what sources claim, published and reproduced, on one axis of ratios."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from parbench.reporting.drawing import INK, Panel, svg
from parbench.reporting.text import cut, fixed, ratio_text
from parbench.verdicts import words
from parbench.verdicts.claims import EVEN, Comparison, Judged
from parbench.verdicts.estimates import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 6.85  # inches; the text of an A4 page
LABEL, LEFT, RIGHT, SAYS = 3.52, 3.6, 5.65, 5.84  # where columns end or begin, in inches
LINE, ROW, GAP = 0.135, 0.135, 0.13  # of text, of a comparison, between claims
GOOD = "#1a9480"  # here a claim holds
LOOKS = {  # sign and colour, each with a contrast of 3 or more on white and on the dark page
    words.HOLDS: ("✓", GOOD),
    words.FAILS: ("✗", "#d14b45"),
    words.UNDECIDED: ("?", "#7b8894"),
    words.REPORTED: ("", "#3b7dd8"),
}
MIDDLE = {"va": "center_baseline"}
TICKS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50)
FINE = (0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6)
CAPTION = (
    "Each row is a comparison of this report with one in the source, as a ratio: of what the small "
    "print of a claim names. A claim holds where the whole bar lies in the green, does not hold "
    "where it lies outside, and is undecided where it crosses the edge; in the grey, a ratio is "
    "noise. Bars that leave the axis end in an arrow. Firm: it would stand also if all claims of "
    "this report were tested as one."
)


@dataclass(frozen=True)
class Line:
    """A comparison of a claim, by its ``label``."""

    label: str
    each: Comparison


@dataclass(frozen=True)
class Block:
    """A claim, by its number in the report, with what was measured of it; ``test`` in words."""

    number: int
    judged: Judged
    test: str
    lines: tuple[Line, ...]

    @property
    def texts(self) -> tuple[list[str], list[str]]:
        """The claim's and the test's lines."""
        said = f"{self.number}  {self.judged.claim.claim}"
        return textwrap.wrap(said, 43), textwrap.wrap(self.test, 52)

    @property
    def height(self) -> float:
        """In inches."""
        return max(LINE * sum(map(len, self.texts)), ROW * len(self.lines), LINE * 2) + GAP

    @property
    def spoken(self) -> str:
        """All that is drawn, in words."""
        told = "; ".join(map(_spoken, self.lines))
        return f"Claim {self.number}, {_word(self.judged)}: {self.judged.claim.claim} {told}."


def shown(each: Comparison) -> bool:
    """Whether it has a ratio to draw."""
    return isinstance(each.measured, Estimate) and each.verdict != words.UNTESTED


def part(source: str, blocks: list[Block]) -> dict:
    """The figure of one source, as in report.json."""
    height = sum(block.height for block in blocks) + 0.62
    panel = Panel(partial(_draw, source, blocks), height, WIDTH)
    alt = " ".join([f"Claims of {source}.", *(block.spoken for block in blocks)])
    return {"alt": alt, "svg": svg(f"claims-{source}", panel)}


def key() -> dict:
    """What its signs mean."""
    alt = (
        "Key: diamond, published; bar, 95 % interval; dots, restarts or seeds; upright, most that "
        "this hardware allows; green, where the claim holds; grey, noise."
    )
    return {"alt": alt, "svg": svg("claims-key", Panel(_draw_key, 0.24, WIDTH))}


def _spoken(line: Line) -> str:
    found, published = line.each.measured, line.each.published
    text = f"{line.label}: {line.each.verdict}, {ratio_text(found.mean)}"
    if not math.isnan(found.ci_low):
        text += f" ({fixed(found.ci_low, 2)} to {fixed(found.ci_high, 2)})"
    return text + (f", published {ratio_text(published)}" if published is not None else "")


def _word(judged: Judged) -> str:
    return judged.verdict + (", firm" if judged.firm else "")


# ---------------------------------------------------------------- what is drawn


def _values(each: Comparison) -> list[float]:
    """The ratio of every restart or seed."""
    if not each.ratios:
        return []
    first, *others = (ratio.by_seed for ratio in each.ratios)
    seeds = set(first).intersection(*others)
    return [first[n] / math.prod(other[n] for other in others) for n in sorted(seeds)]


def _threshold(block: Block, each: Comparison) -> float:
    value = block.judged.claim.test.value
    value = each.ratios[0].stated if value == "published" else value
    return 1.0 if value is None else value


def _bound(each: Comparison) -> float:
    return each.ratios[0].bound if len(each.ratios) == 1 else math.inf


def _limits(blocks: list[Block]) -> tuple[float, float]:
    """Where the axis ends: all points lie on it, bars may leave it."""
    points = [1.0]
    for block in blocks:
        for line in block.lines:
            each = line.each
            points += [each.measured.mean, *_values(each), _threshold(block, each)]
            points += [each.published] if each.published else []
            points += [_bound(each)] if math.isfinite(_bound(each)) else []
    points = [point for point in points if point > 0]
    room = max(1.04, (max(points) / min(points)) ** 0.06)
    return min(points) / room, max(points) * room


def _draw(source: str, blocks: list[Block], figure: Figure) -> None:
    from matplotlib.transforms import blended_transform_factory

    figure.set_layout_engine("none")  # columns stand where they are put
    height = figure.get_figheight()
    top, bottom = 0.24 / height, 0.38 / height
    box = (LEFT / WIDTH, bottom, (RIGHT - LEFT) / WIDTH, 1 - top - bottom)
    axes = figure.add_axes(box)
    low, high = _limits(blocks)
    axes.set(xscale="log", xlim=(low, high), ylim=(sum(b.height for b in blocks), 0), yticks=[])
    axes.spines["left"].set_visible(False)
    ticks = [t for t in (FINE if high / low < 2.2 else TICKS) if low <= t <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.tick_params(labelsize=7)
    axes.grid(visible=True, axis="x")
    axes.set_xlabel("Ratio (logarithmic)", fontsize=7)
    place = blended_transform_factory(figure.dpi_scale_trans, axes.transData)
    heads = {0: source, SAYS: "Verdict"}
    for x, text in heads.items():
        axes.text(x, -0.06, text, transform=place, weight="bold", fontsize=8.5, va="bottom")
    at = 0.0
    for block in blocks:
        if at:
            line = {"transform": place, "color": INK, "lw": 0.4, "alpha": 0.3, "clip_on": False}
            axes.plot([0, WIDTH], [at, at], **line)
        _draw_block(axes, block, at + GAP / 2, place)
        at += block.height


def _draw_block(axes: Axes, block: Block, at: float, place) -> None:
    """A claim from ``at`` down: its text, its comparisons, its verdict."""
    claim, test = block.texts
    look = {"transform": place, "va": "top"}
    axes.text(0, at, "\n".join(claim), fontsize=7.5, linespacing=1.15, **look)
    below = at + LINE * len(claim)
    axes.text(0, below, "\n".join(test), fontsize=6.3, linespacing=1.2, **look)
    word = f"{LOOKS[block.judged.verdict][0]} {block.judged.verdict}"
    axes.text(SAYS, at + ROW / 2, word, fontsize=7.5, weight="bold", **look | MIDDLE)
    if block.judged.firm:
        axes.text(SAYS, at + LINE, "firm", fontsize=7, **look)
    for number, line in enumerate(block.lines):
        middle = at + ROW * (number + 0.5)
        _draw_line(axes, block, line.each, middle)
        small = {"transform": place} | MIDDLE
        axes.text(LABEL, middle, cut(line.label, 22), fontsize=6.5, ha="right", **small)
        if sign := LOOKS[line.each.verdict][0] * (len(block.lines) > 1):
            axes.text(RIGHT + 0.06, middle, sign, fontsize=7.5, weight="bold", **small)


def _draw_line(axes: Axes, block: Block, each: Comparison, at: float) -> None:
    test, value, band = block.judged.claim.test, _threshold(block, each), each.band
    ends, half = axes.get_xlim(), ROW / 2
    floor, ceiling = (value * end for end in band or EVEN)
    green = {">": (ceiling, ends[1]), "<": (ends[0], floor), "within_noise": (floor, ceiling)}
    if test.op in green and band:
        span = _within(green[test.op], ends)
        axes.barh(at, span[1] - span[0], left=span[0], height=ROW, color=GOOD, alpha=0.16, lw=0)
    if test.op in (">", "<"):
        span = _within((floor, ceiling), ends)
        axes.barh(at, span[1] - span[0], left=span[0], height=ROW, color=INK, alpha=0.13, lw=0)
    if test.op in (">", "<", "equal"):
        axes.plot([value, value], [at - half, at + half], color=INK, lw=0.9)
    found, colour = each.measured, LOOKS[each.verdict][1]
    known = not math.isnan(found.ci_low)
    low, high = (found.ci_low, found.ci_high) if known else (found.min, found.max)
    span = _within((low, high), ends)
    style = {"color": colour, "lw": 3.2 if known else 0.8, "alpha": 0.55}
    axes.plot(span, [at, at], solid_capstyle="butt", **style)
    axes.plot(_values(each), [at] * len(_values(each)), "o", ms=2.2, color=INK, mew=0, alpha=0.6)
    axes.plot([found.mean] * 2, [at - 0.05, at + 0.05], color=colour, lw=1.5)
    for end, beyond, marker in ((0, low < ends[0], "<"), (1, high > ends[1], ">")):
        if beyond:
            axes.plot(ends[end], at, marker, ms=3.5, color=colour, mew=0, clip_on=False)
    if _bound(each) < math.inf:
        axes.plot([_bound(each)] * 2, [at - half, at + half], color="#d0700d", lw=1.8)
    if each.published:
        axes.plot(each.published, at, "D", ms=3.6, mfc="none", mec=INK, mew=0.9)


def _within(span: tuple[float, float], ends: tuple[float, float]) -> tuple[float, float]:
    low, high = (min(max(end, ends[0]), ends[1]) for end in span)
    return low, high


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
        "noise": Patch(color=INK, alpha=0.13, lw=0),
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
