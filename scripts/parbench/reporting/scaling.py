"""What more devices bring, from pairs: the gain and the serial fraction."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from parbench.reporting.drawing import COLORS, INK, WIDTH, FigureEntry, Panel, figure_json
from parbench.reporting.lines import Line, Point, by_doubling, draw_line
from parbench.reporting.study_results import StudyResults
from parbench.reporting.text import cut
from parbench.verdicts.groups import Group
from parbench.verdicts.sequential import Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STRONG, WEAK = "strong", "weak"
WITH_BATCH = ("global_batch", "min_tail", "steps", "evaluation_batch")  # may vary with the batch
TITLE = "What do more devices bring, and what does not scale?"
CAPTION = (
    "Measured in turns with one device, with 95 % intervals, or ranges of fewer than "
    "4 restarts. Strong scaling: the speedup with as many samples in total. Weak "
    "scaling: the ratio of throughputs with as many samples on each device. Dashed: "
    "linear scaling; a dash: the bound of a pipeline. Right: the serial fraction. For "
    "strong scaling it is (N/S − 1)/(N − 1) with a speedup S on N devices (Karp and "
    "Flatt, 1990, after Amdahl's law), for weak scaling (N − S)/(N − 1) (after "
    "Gustafson's law). If it grows with the devices, communication and waiting cause "
    "it rather than serial work."
)
HEADS = {STRONG: "Strong scaling: speedup", WEAK: "Weak scaling: throughput"}


def karp_flatt(speedup: float, devices: int) -> float:
    """Return the serial fraction of Amdahl's law for a measured speedup (Karp and Flatt 1990)."""
    return (devices / speedup - 1) / (devices - 1)


def gustafson(speedup: float, devices: int) -> float:
    """Return the serial fraction for a scaled speedup (Gustafson 1988)."""
    return (devices - speedup) / (devices - 1)


SERIAL: dict[str, Callable[[float, int], float]] = {STRONG: karp_flatt, WEAK: gustafson}


@dataclass(frozen=True)
class Measure:
    """A number with the ends of its interval or, if there are too few values, of their range."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, series: Series) -> Measure:
        """Return the mean of ``series`` with its ends."""
        return cls(series.known_mean, *series.outer)


@dataclass(frozen=True)
class Scaled:
    """A group on several devices with its baseline on one: ``kind`` is strong if their global
    batches are equal, weak if their batches per device are."""

    group: Group
    baseline: Group
    kind: str

    @property
    def measured(self) -> bool:
        """Whether a pair compared the two."""
        pair = self.group.pairs.get(self.baseline.id)
        return pair is not None and bool(pair.restarts)

    @property
    def gain(self) -> Measure:
        """The ratio of samples per second; in strong scaling, the speedup."""
        return Measure.of(self.group.pairs[self.baseline.id].series)

    @property
    def serial(self) -> Measure:
        """The serial fraction; the ends of its interval follow from those of the gain."""
        fraction, gain = SERIAL[self.kind], self.gain
        return Measure(
            *(
                fraction(speedup, self.group.devices)
                for speedup in (gain.value, gain.high, gain.low)
            )
        )


def scaled(group: Group, groups: Mapping[str, Group]) -> Scaled | None:
    """Return ``group`` with its baseline from ``groups``; None if they differ in more than the
    number of devices, or the strategy says that its speedup means something else."""
    baseline = groups.get(group.baseline or "")
    if baseline is None or group.devices == 1 or baseline.devices > 1:
        return None
    if _curve_key(group) != _curve_key(baseline) or "speedup" in group.comparable:
        return None
    kinds = {baseline.batch: STRONG, baseline.batch * group.devices: WEAK}
    kind = kinds.get(group.batch)
    return Scaled(group, baseline, kind) if kind else None


def several(groups: Iterable[Group], known: Mapping[str, Group]) -> list[Scaled]:
    """Return those of ``groups`` that make curves: models on more than one number of devices, where
    those on several nodes count only if measured."""
    points = [point for point in (scaled(group, known) for group in groups) if point]
    devices_by_model: dict[str, set[int]] = {}
    for point in points:
        if point.measured or point.group.hardware.nodes == 1:
            devices_by_model.setdefault(point.group.model, set()).add(point.group.devices)
    return [point for point in points if len(devices_by_model.get(point.group.model, ())) > 1]


def _curve_key(group: Group) -> list[object]:
    """Return what must be equal for two groups to be on one curve."""
    settings = asdict(group.training)
    fixed = {key: value for key, value in settings.items() if key not in WITH_BATCH}
    hardware = group.hardware
    return [
        fixed,
        group.dataset,
        group.model_options,
        hardware.device,
        hardware.threads,
        hardware.gpu_model,
    ]


# ---------------------------------------------------------------- the figure

Lines = dict[str, list[Scaled]]  # by label


def scaling_figure(study: StudyResults) -> FigureEntry | None:
    """Return the figure of gain and serial fraction by number of devices, or None."""
    kinds_by_model: dict[str, dict[str, Lines]] = {}
    for scaled in several(study.own, study.by_id):
        if scaled.measured:
            lines = kinds_by_model.setdefault(scaled.group.model, {}).setdefault(scaled.kind, {})
            label = _label(scaled)
            if scaled.group.devices in (other.group.devices for other in lines.get(label, [])):
                label += f" ({scaled.group.variant})"
            lines.setdefault(label, []).append(scaled)
    panels = {}
    for model, kinds in kinds_by_model.items():
        line_count = sum(map(len, kinds.values()))
        alt_texts = (_alt_text(kind, lines) for kind, lines in sorted(kinds.items()))
        draw = partial(_draw, model, dict(sorted(kinds.items())))
        panels[model] = Panel(
            draw, 2.1 + 0.17 * ((line_count + 1) // 2), WIDTH, " ".join(alt_texts)
        )
    return figure_json(study, "scaling", TITLE, CAPTION, panels) if panels else None


def _label(each: Scaled) -> str:
    nodes = each.group.hardware.nodes
    batch = f"{each.baseline.batch} {'in all' if each.kind == STRONG else 'each'}"
    return f"{each.group.strategy}, batch {batch}" + (f", {nodes} nodes" if nodes > 1 else "")


def _line(label: str, those: list[Scaled], quantity: str) -> Line:
    """Return ``gain`` or ``serial`` by number of devices."""
    measures: list[tuple[int, Measure]] = [
        (scaled.group.devices, getattr(scaled, quantity)) for scaled in those
    ]
    return Line(
        label,
        [
            Point(devices, measure.value, measure.low, measure.high)
            for devices, measure in sorted(measures, key=lambda pair: pair[0])
        ],
    )


def _alt_text(kind: str, lines: Lines) -> str:
    parts = (
        f"{heading}: " + "; ".join(_line(*entry, quantity).words("x") for entry in lines.items())
        for heading, quantity in ((HEADS[kind], "gain"), (f"Serial fraction, {kind}", "serial"))
    )
    return " ".join(f"{part}." for part in parts)


def _draw(model: str, kinds: dict[str, Lines], figure: Figure) -> None:
    subplots = figure.subplots(1, len(kinds) + 1)
    all_scaled = [
        scaled for lines in kinds.values() for curve in lines.values() for scaled in curve
    ]
    device_counts = sorted({1, *(scaled.group.devices for scaled in all_scaled)})
    colors, serial_axes = itertools.cycle(COLORS), subplots[-1]
    for axes, (kind, lines) in zip(subplots, kinds.items(), strict=False):
        axes.plot(device_counts, device_counts, color=INK, ls="--", lw=0.8, alpha=0.6)
        for (label, curve), color in zip(lines.items(), colors, strict=False):
            gain = _line(label, curve, "gain")
            draw_line(axes, Line(label, [Point(1, 1, 1, 1), *gain.points]), color)
            style = "-" if kind == STRONG else ":"
            draw_line(serial_axes, _line(label, curve, "serial"), color, style)
            for scaled in curve:
                if bound := scaled.group.work.pipeline_bound:
                    axes.plot(scaled.group.devices, bound, "_", ms=9, mew=1.8, color=color)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_title(HEADS[kind], fontsize=8)
        axes.set_ylabel("times one device")
    serial_axes.set_title("Serial fraction", fontsize=8)
    serial_axes.axhline(0, color=INK, lw=0.6)
    for axes in subplots:
        by_doubling(axes, device_counts)
        axes.set_xlabel("Devices")
    figure.suptitle(cut(model, 60), x=0.01, ha="left", fontsize=9, weight="bold")
    handles = [handle for axes in subplots[:-1] for handle in axes.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside lower left", ncols=2, fontsize=6.5)
