"""What more devices bring, from pairs: the gain and the serial fraction."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING

from parbench.reporting.curves import Line, Point, by_doubling, draw_line
from parbench.reporting.drawing import COLOURS, INK, WIDTH, Panel, figure_json
from parbench.reporting.study import Study
from parbench.reporting.text import cut
from parbench.verdicts.scaling import STRONG, WEAK, Measure, Scaled, several

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "What do more devices bring, and what does not scale?"
CAPTION = (
    "Compared in turns with one device: as many samples in all (strong scaling: the speedup) or on "
    "each device (weak: the ratio of throughputs), with 95 % intervals, of fewer than 4 restarts "
    "ranges. Dashed: as many times as devices; a dash: the bound of a pipeline. Right: the serial "
    "fraction, of strong scaling by Karp and Flatt (1990), (N/S − 1)/(N − 1) of a speedup S on N "
    "devices, after Amdahl's law; of weak scaling (N − S)/(N − 1), after Gustafson's. Where it "
    "grows with the devices, it is communication and waiting rather than serial work."
)
HEADS = {STRONG: "Strong scaling: speedup", WEAK: "Weak scaling: throughput"}
Lines = dict[str, list[Scaled]]  # by label


def scaling_figure(study: Study) -> dict | None:
    """Return the figure of gain and serial fraction by number of devices, or None."""
    models: dict[str, dict[str, Lines]] = {}
    for each in several(study.own, study.by_id):
        if each.measured:
            lines = models.setdefault(each.group.model, {}).setdefault(each.kind, {})
            label = _label(each)
            if each.group.devices in (other.group.devices for other in lines.get(label, [])):
                label += f" ({each.group.variant})"
            lines.setdefault(label, []).append(each)
    panels = {}
    for model, kinds in models.items():
        number = sum(map(len, kinds.values()))
        spoken = (_spoken(kind, lines) for kind, lines in sorted(kinds.items()))
        draw = partial(_draw, model, dict(sorted(kinds.items())))
        panels[model] = Panel(draw, 2.1 + 0.17 * ((number + 1) // 2), WIDTH, " ".join(spoken))
    return figure_json(study, "scaling", TITLE, CAPTION, panels) if panels else None


def _label(each: Scaled) -> str:
    nodes = each.group.hardware.nodes
    batch = f"{each.baseline.batch} {'in all' if each.kind == STRONG else 'each'}"
    return f"{each.group.strategy}, batch {batch}" + (f", {nodes} nodes" if nodes > 1 else "")


def _line(label: str, those: list[Scaled], quantity: str) -> Line:
    """Return ``gain`` or ``serial`` by number of devices."""
    found: list[tuple[int, Measure]] = [(e.group.devices, getattr(e, quantity)) for e in those]
    return Line(
        label, [Point(n, m.value, m.low, m.high) for n, m in sorted(found, key=lambda f: f[0])]
    )


def _spoken(kind: str, lines: Lines) -> str:
    parts = (
        f"{heading}: " + "; ".join(_line(*each, name).words("x") for each in lines.items())
        for heading, name in ((HEADS[kind], "gain"), (f"Serial fraction, {kind}", "serial"))
    )
    return " ".join(f"{part}." for part in parts)


def _draw(model: str, kinds: dict[str, Lines], figure: Figure) -> None:
    parts = figure.subplots(1, len(kinds) + 1)
    every = [each for lines in kinds.values() for those in lines.values() for each in those]
    places = sorted({1, *(each.group.devices for each in every)})
    colours, last = itertools.cycle(COLOURS), parts[-1]
    for axes, (kind, lines) in zip(parts, kinds.items(), strict=False):
        axes.plot(places, places, color=INK, ls="--", lw=0.8, alpha=0.6)
        for (label, those), colour in zip(lines.items(), colours, strict=False):
            gain = _line(label, those, "gain")
            draw_line(axes, Line(label, [Point(1, 1, 1, 1), *gain.points]), colour)
            draw_line(
                last, _line(label, those, "serial"), colour, ls="-" if kind == STRONG else ":"
            )
            for each in those:
                if bound := each.group.work.pipeline_bound:
                    axes.plot(each.group.devices, bound, "_", ms=9, mew=1.8, color=colour)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_title(HEADS[kind], fontsize=8)
        axes.set_ylabel("times one device")
    last.set_title("Serial fraction", fontsize=8)
    last.axhline(0, color=INK, lw=0.6)
    for axes in parts:
        by_doubling(axes, places)
        axes.set_xlabel("Devices")
    figure.suptitle(cut(model, 60), x=0.01, ha="left", fontsize=9, weight="bold")
    handles = [each for axes in parts[:-1] for each in axes.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside lower left", ncols=2, fontsize=6.5)
