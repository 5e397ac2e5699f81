"""Which operators take the most time: a study's profiles and the published ones."""

from __future__ import annotations

from statistics import fmean

from parbench.reporting.paper_tables import KEYS, context, key_cells, outcome_cell, published_cell
from parbench.reporting.study_results import StudyResults
from parbench.reporting.table import Notes, TableCell, TableEntry, absent, make_table, number
from parbench.runs.operator_metrics import clock
from parbench.runs.parts import Operators
from parbench.verdicts.groups import Group
from parbench.verdicts.terms import OK

SELF, TOTAL = "operator_self_seconds:", "operator_total_seconds:"
UNIT = "ms"


def operators_table(study: StudyResults) -> TableEntry | None:
    """Return a table, a row per operator, of groups that profiled inference; None if none."""
    training_heads = [(f"Training ({UNIT})", ["Self", "Share"])]
    return _table(
        study, "operators", "Operators that take the most time", "Inference", training_heads
    )


def training_operators_table(study: StudyResults) -> TableEntry | None:
    """Return the same table for groups that profiled only training."""
    title = "Operators that take the most time in a training step"
    return _table(study, "training_operators", title, "Training", [])


def _table(
    study: StudyResults, profile: str, title: str, part: str, more: list
) -> TableEntry | None:
    groups = [group for group in study.groups if group.training.profile == profile]
    if not groups:
        return None
    notes = Notes()
    return make_table(
        f"t-{study.name}-{profile}",
        title,
        [
            ("", [*KEYS, "Operator"]),
            *([(f"Published ({UNIT})", ["Self", "Total", "Share"])] if study.has_source else []),
            (f"{part} ({UNIT})", ["Self", "Total", "Share"]),
            *more,
        ],
        [row for group in groups for row in _rows(study, group, notes, bool(more))],
        caption="Times by torch.profiler over a few steps (docs/verdicts.md), on the "
        "accelerator if there is one, otherwise on the CPU. Self time excludes the operators "
        "that an operator calls; its share is of all self time. None of the source's "
        "tables says how many steps it recorded: compare shares, not times.",
        context=context(groups),
        notes=notes,
    )


def _rows(study: StudyResults, group: Group, notes: Notes, training: bool) -> list[list[TableCell]]:
    """Return a group's rows; ``training``: append the times in training."""
    rows = []
    for name in _names(study, group):
        self_row, total_row = (study.row(group, f"{kind}{name}") for kind in (SELF, TOTAL))
        cells = [*key_cells(group), TableCell(name)]
        if study.has_source:
            cells += [published_cell(row, UNIT) for row in (self_row, total_row)]
            cells.append(_percent(_share(study, group, name, "published")))
        measured = self_row is not None and self_row.mean is not None
        if not measured and group.short_status != OK:
            outcome = outcome_cell(study, group, self_row, UNIT, SELF, span=5 if training else 3)
            cells.append(outcome.marked(notes.mark(group.not_run or "")))
        else:
            cells += [outcome_cell(study, group, row, UNIT, SELF) for row in (self_row, total_row)]
            cells.append(_percent(_share(study, group, name, "mean")))
            cells += _training(group, name) if training else []
        rows.append(cells)
    return rows


def _names(study: StudyResults, group: Group) -> list[str]:
    """Return a group's operators: largest first, then those only the source has."""
    rows = [
        row
        for (identity, metric), row in study.rows.items()
        if identity == group.id and metric.startswith(SELF)
    ]
    rows.sort(key=lambda row: (-(row.mean or 0.0), -(row.published or 0.0)))
    return [row.metric.removeprefix(SELF) for row in rows]


def _share(study: StudyResults, group: Group, name: str, key: str) -> float | None:
    """Return an operator's share of self time; ``key``: mean or published."""
    rows = study.row(group, f"{SELF}{name}"), study.row(group, "profile_self_seconds")
    own, total = (None if row is None else getattr(row, key) for row in rows)
    return own / total if own is not None and total else None


def _training(group: Group, name: str) -> list[TableCell]:
    """Return an operator's self time and share in training: means over seeds."""
    key = f"{clock(group.hardware.device)}_self_seconds"
    recorded = (run.profile.training for run in group.ok if isinstance(run.profile, Operators))
    profiles = [profile for profile in recorded if profile is not None]
    times = [
        getattr(operator, key)
        for profile in profiles
        for operator in profile.operators
        if operator.name == name
    ]
    if not times:
        return [absent("not among the largest")] * 2
    milliseconds = 1000 * fmean(times)
    share = fmean(times) / fmean(getattr(profile, key) for profile in profiles)
    return [number(milliseconds, f"{milliseconds:.3g}"), _percent(share)]


def _percent(share: float | None) -> TableCell:
    if share is None:
        return absent("no share")
    return number(share, f"{100 * share:.1f} %")
