"""Which operators take the time: the profiles of a study beside the published ones."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from parbench.measure.metrics import clock
from parbench.reporting.drawing import draw_panels, figure_json
from parbench.reporting.paper_tables import KEYS, context, key_cells, outcome_cell, published_cell
from parbench.reporting.study import Study
from parbench.reporting.svg import INK
from parbench.reporting.table import Cell, absent, make_table, number
from parbench.reporting.text import cut, listed
from parbench.verdicts.groups import Group
from parbench.verdicts.tables import SHOWN_OPERATORS
from parbench.verdicts.words import OK

SELF, TOTAL = "operator_self_seconds:", "operator_total_seconds:"
UNIT = "ms"


def operators_table(study: Study) -> dict | None:
    """A row an operator of each profiled group; None where none is."""
    groups = [group for group in study.groups if group.training.profile == "operators"]
    if not groups:
        return None
    return make_table(
        f"t-{study.name}-operators",
        "Operators that take the time",
        [
            ("", [*KEYS, "Operator"]),
            *([(f"Published ({UNIT})", ["Self", "Total"])] if study.has_source else []),
            (f"Inference ({UNIT})", ["Self", "Total", "Share"]),
            (f"Training ({UNIT})", ["Self", "Share"]),
        ],
        [row for group in groups for row in _rows(study, group)],
        caption="Times by torch.profiler over a few steps (docs/verdicts.md): on the accelerator "
        "where there is one, else on the processor. Self time is without the operators that an "
        "operator calls, and its share is of all self time. How many steps the source recorded "
        "stands in none of its tables: shares compare, times do not.",
        context=context(study, groups),
    )


def _rows(study: Study, group: Group) -> list[list[Cell]]:
    rows = []
    for name in _names(study, group):
        own, whole = (study.row(group, f"{kind}{name}") for kind in (SELF, TOTAL))
        cells = [*key_cells(group), Cell(name)]
        if study.has_source:
            cells += [published_cell(row, UNIT) for row in (own, whole)]
        measured = own is not None and own.mean is not None
        if not measured and group.short_status != OK:
            cells.append(outcome_cell(study, group, own, UNIT, span=5))
        else:
            share = _share(study, group, name)
            cells += [outcome_cell(study, group, row, UNIT) for row in (own, whole)]
            cells += [_percent(share), *_training(group, name)]
        rows.append(cells)
    return rows


def _names(study: Study, group: Group) -> list[str]:
    """Operators of a group: the largest first, then those that only the source tells."""
    rows = [
        row
        for (identity, metric), row in study.rows.items()
        if identity == group.id and metric.startswith(SELF)
    ]
    rows.sort(key=lambda row: (-(row.mean or 0.0), -(row.published or 0.0)))
    return [row.metric.removeprefix(SELF) for row in rows]


def _share(study: Study, group: Group, name: str, key: str = "mean") -> float | None:
    """An operator's part of all self time; ``key`` is mean or published."""
    rows = study.row(group, f"{SELF}{name}"), study.row(group, "profile_self_seconds")
    own, total = (None if row is None else getattr(row, key) for row in rows)
    return own / total if own is not None and total else None


def _training(group: Group, name: str) -> list[Cell]:
    """Self time of an operator in training, and its share: means over the seeds."""
    key = f"{clock(group.hardware.device)}_self_seconds"
    return _own(_recorded(group, "training", key), name)


def _recorded(group: Group, part: str, key: str) -> tuple[dict[str, float], float]:
    """Seconds of each operator, and of all, in a part of the profiles: means over the seeds."""
    profiles = (run.get("profile") or {} for run in group.cell_runs)
    parts = [profile[part] for profile in profiles if profile.get(part) is not None]
    times: dict[str, list[float]] = {}
    for each in parts:
        for operator in each["operators"]:
            times.setdefault(operator["name"], []).append(operator[key])
    total = fmean(each[key] for each in parts) if parts else 0.0
    return {name: fmean(values) for name, values in times.items()}, total


def _own(recorded: tuple[dict[str, float], float], name: str) -> list[Cell]:
    """Milliseconds of an operator and its share, of what ``_recorded`` gives."""
    times, total = recorded
    if name not in times:
        return [absent("not among the largest")] * 2
    milliseconds = 1000 * times[name]
    return [number(milliseconds, f"{milliseconds:.3g}"), _percent(times[name] / total)]


def processor_table(study: Study) -> dict | None:
    """The processor's own time beside an accelerator; None where none was recorded."""
    groups = [
        group
        for group in study.groups
        if group.training.profile == "operators" and group.hardware.device != "cpu"
    ]
    recorded = {
        group.id: [_recorded(group, part, "cpu_self_seconds") for part in ("inference", "training")]
        for group in groups
    }
    groups = [group for group in groups if recorded[group.id][0][0]]
    if not groups:
        return None

    def rows(group: Group) -> list[list[Cell]]:
        inference, training = recorded[group.id]
        times = inference[0]
        return [
            [*key_cells(group), Cell(name), *_own(inference, name), *_own(training, name)]
            for name in sorted(times, key=times.__getitem__, reverse=True)[:SHOWN_OPERATORS]
        ]

    return make_table(
        f"t-{study.name}-operators-processor",
        "Operators that take the processor's time beside an accelerator",
        [
            ("", [*KEYS, "Operator"]),
            (f"Inference ({UNIT})", ["Self", "Share"]),
            (f"Training ({UNIT})", ["Self", "Share"]),
        ],
        [row for group in groups for row in rows(group)],
        caption="Self time on the processor, which starts the accelerator's work and waits for it: "
        "what some sources print of a GPU. It says nothing of what the accelerator did.",
        context=context(study, groups),
    )


def _percent(share: float | None) -> Cell:
    if share is None:
        return absent("not measured")
    return number(share, f"{100 * share:.1f} %")


@dataclass(frozen=True)
class Share:
    """An operator's part of all self time, here and in the source."""

    name: str
    here: float
    published: float | None


def operators_figure(study: Study) -> dict | None:
    """Which operators take the time? A panel a group: shares here, and the published ones."""
    panels: dict[str, list[tuple[Group, Share]]] = {}
    answers = []
    for group in study.groups:
        bars = [
            (group, Share(name, share, _share(study, group, name, "published")))
            for name in _names(study, group)
            if (share := _share(study, group, name)) is not None
        ]
        if not bars:
            continue
        title = f"{group.model}, {group.variant}"
        panels[title] = bars
        largest = bars[0][1]
        answers.append(f"{largest.name} for {title} ({100 * largest.here:.0f} %)")
    if not panels:
        return None
    caption = (
        f"Largest share of self time in inference: {listed(answers)}. Bars: measured here; "
        "diamonds: what the source prints, as a share of its own total."
    )

    def draw(axes: Any, bars: list[tuple[Group, Share]]) -> None:
        axes.set_yticks(range(len(bars)), [cut(share.name, 30) for _, share in bars])
        for place, (_, share) in enumerate(bars):
            axes.barh(place, 100 * share.here, height=0.56, color="#3f6fa8")
            if share.published is not None:
                axes.plot(100 * share.published, place, "D", ms=4.5, color=INK)
        axes.set_xlim(0, 100)

    parts = draw_panels(study, "operators", caption, panels, draw, "Share of self time (%)")
    return figure_json(study, "operators", "Which operators take the time?", caption, parts)
