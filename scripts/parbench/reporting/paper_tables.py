"""The tables of a study: published beside reproduced, speedups, and counts of verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from parbench.plan.study import Table
from parbench.reporting.study_results import ONCE, StudyResults
from parbench.reporting.table import (
    Notes,
    TableCell,
    TableEntry,
    absent,
    make_table,
    number,
)
from parbench.reporting.text import (
    convert,
    hardware_text,
    heading,
    listed,
    machine_text,
    short,
)
from parbench.runs.metrics import METRICS, TO_PUBLISHED, label
from parbench.verdicts import terms
from parbench.verdicts.groups import Group
from parbench.verdicts.ratios import ratio_text
from parbench.verdicts.rows import Row
from parbench.verdicts.tables import IN_TURNS

KEYS = ["Model", "Variant", "Hardware"]
VERDICT = "Verdict"
FOUR = ["Published", "Reproduced", "Ratio", VERDICT]
TONES = {
    terms.AS_PUBLISHED: "good",
    terms.SMALLER: "bad",
    terms.LARGER: "bad",
    terms.OPPOSITE: "bad",
}
APART = "not in turns"  # marks a speedup that no pair of the study measures


# ---------------------------------------------------------------- cells of a row


def key_cells(group: Group, marks: Sequence[str] = ()) -> list[TableCell]:
    """Return model, variant and hardware: the keys of every table of groups."""
    return [
        TableCell(group.model),
        TableCell(group.variant, marks=marks),
        TableCell(hardware_text(group.hardware), sort=group.cores),
    ]


def published_cell(row: Row | None, unit: str) -> TableCell:
    """Return the source's number, or a dash if there is none."""
    if row is None or row.published is None:
        return absent(terms.NO_PUBLISHED_VALUE)
    value = convert(row.published, row.published_unit or row.unit, unit)
    return number(value, short(value, unit))


def outcome_cell(
    study: StudyResults,
    group: Group,
    row: Row | None,
    unit: str,
    metric: str,
    span: int | None = None,
) -> TableCell:
    """Return the reproduced number, linked to its cells, or why there is none.

    The reason spans ``span`` columns.
    """
    link = study.panel(group)
    if row is None and study.has_no_pair(group, metric):
        return TableCell(APART, tone="muted")
    if row is not None and row.mean is not None:
        known = METRICS.get(metric)
        if group.shared and study.pairs and known is not None and known.changes_if_shared:
            # It would contradict ratios that were measured without other cells.
            return TableCell(terms.SHARED_CELL, tone="muted", link=link)
        value = convert(row.mean, row.unit, unit)
        return TableCell(study.reproduced(row, unit), sort=value, link=link)
    status, reason = group.short_status, row.reason if row else ""
    if status == terms.OK and row is not None and row.verdict == terms.NOT_MEASURED:
        return TableCell(terms.NOT_MEASURED, span=span, tone="muted", link=link)
    if status == terms.OK:
        texts = (text for text in reason.split("; ") if text.startswith(terms.NOT_REACHED))
        not_reached = next(texts, None)
        return TableCell(not_reached, link=link) if not_reached else absent("does not apply")
    if group.not_run:
        return TableCell(status, span=span, tone="muted")  # a note says why, once for all rows
    why = group.why or reason
    return TableCell(f"{status}: {why}" if why else status, span=span, tone="bad", link=link)


def verdict_cell(row: Row | None, group: Group, marks: Sequence[str] = ()) -> TableCell:
    """Return the verdict's cell, which is never blank."""
    verdict = row.verdict if row else (terms.NOT_RUN if group.not_run else "no verdict")
    if verdict in ("no verdict", terms.NO_PUBLISHED_VALUE):
        return absent(verdict, verdict=verdict, marks=marks)
    return TableCell(verdict, tone=TONES.get(verdict, "plain"), verdict=verdict, marks=marks)


def metric_cells(
    study: StudyResults, group: Group, metric: str, unit: str, columns: list[str], notes: Notes
) -> list[TableCell]:
    """Return a metric's ``columns``, which come from ``columns_of``."""
    row = study.row(group, metric)
    outcome = outcome_cell(study, group, row, unit, metric)
    reason = row.reason if row else group.not_run or ""
    if row and metric not in IN_TURNS:  # "Compared in turns" has the readings of these
        reason = "; ".join(filter(None, (row.reading, reason)))
    if VERDICT not in columns and (group.not_run or (row and row.mean is not None)):
        outcome = outcome.marked(notes.mark_all(reason))
    ratio = row.ratio if row and row.verdict in terms.JUDGED else None
    cells = {
        "Published": published_cell(row, unit),
        "Reproduced": outcome,
        "Ratio": absent("no ratio") if ratio is None else number(ratio, ratio_text(ratio)),
        VERDICT: verdict_cell(row, group, notes.mark_all(reason) if VERDICT in columns else ()),
    }
    return [cells[column] for column in columns]


def columns_of(study: StudyResults, groups: list[Group], metric: str) -> list[str]:
    """Return a metric's columns: FOUR if a row is judged, else published (if any), reproduced."""
    rows = [row for group in groups if (row := study.row(group, metric))]
    if any(row.verdict in terms.JUDGED for row in rows):
        return FOUR
    return FOUR[:2] if any(row.published is not None for row in rows) else FOUR[1:2]


# ---------------------------------------------------------------- tables of a study


def paper_table(study: StudyResults, index: int, table: Table) -> TableEntry:
    """Return one of the paper's tables, in its own layout."""
    units = {metric: study.unit(metric) for metric in table.metrics} | (table.units or {})
    title_caption_groups = table.title, table.caption or "", study.table_groups(table)
    return _metrics_table(
        study, str(index), *title_caption_groups, {m: units[m] for m in table.metrics}
    )


def time_to_accuracy(study: StudyResults) -> TableEntry | None:
    """Return the table of training times to the published accuracy; None without any."""
    metric = TO_PUBLISHED.name
    groups = [group for group in study.groups if group.cell_runs and study.row(group, metric)]
    units = {"test_accuracy": study.unit("test_accuracy"), metric: study.unit("train_seconds")}
    caption = (
        "Seconds of training, without evaluation, until the end of the first epoch with "
        "at least the published test accuracy. If a seed never reached it, no mean is "
        "shown, since it would leave out the slowest."
    )
    texts = ("time-to-accuracy", "Time to the published accuracy", caption)
    return _metrics_table(study, *texts, groups, units) if groups else None


def _metrics_table(
    study: StudyResults,
    identity: str,
    title: str,
    caption: str,
    groups: list[Group],
    units: dict[str, str],
) -> TableEntry:
    """Return a table, a row per group; each metric in its unit, published beside reproduced."""
    notes, rows = Notes(ONCE), []
    metrics_apart = [
        m for m in units if groups and all(study.has_no_pair(group, m) for group in groups)
    ]
    units = {metric: unit for metric, unit in units.items() if metric not in metrics_apart}
    columns = {metric: columns_of(study, groups, metric) for metric in units}
    for group in groups:
        row = key_cells(group, notes.mark(study.own_scale(group)))
        for metric, unit in units.items():
            row += metric_cells(study, group, metric, unit, columns[metric], notes)
        rows.append(row)
    heads = [_metric_head(heading(m, unit), columns[m]) for m, unit in units.items()]
    if metrics_apart or any(
        study.has_no_pair(group, metric) for group in groups for metric in units
    ):
        names = ", ".join(map(label, metrics_apart)).lower() or f"“{APART}”"
        caption += f" {names.capitalize()}: no pair of this study compares variant and baseline."
    return make_table(
        f"t-{study.name}-{identity}",
        title,
        [("", KEYS), *heads],
        rows,
        caption=caption,
        context=context(groups),
        notes=notes,
        empty="The plan has no group of this table.",
    )


def _metric_head(title: str, columns: list[str]) -> tuple[str, list[str]]:
    if columns == FOUR[1:2]:
        return "", [title]
    return (title if VERDICT in columns else f"{title}, not comparable"), columns


def context(groups: list[Group]) -> str:
    """Return a warning if devices or machines are mixed."""
    runs = [run for group in groups for run in group.cell_runs]
    machines = dict.fromkeys(machine_text(run.environment.machine) for run in runs)
    sentences = []
    if len({group.hardware.device for group in groups}) > 1:
        sentences.append(
            "This table holds both CPU and GPU cells: do not compare numbers of one kind "
            "with the other."
        )
    if len(machines) > 1:
        sentences.append(
            f"Machines: {listed(list(machines))}. Do not divide numbers of different machines."
        )
    return " ".join(sentences)


def counted_verdicts(study: StudyResults) -> Counter:
    """Count the verdicts on a study's published numbers."""
    return Counter(row.verdict for row in study.rows.values() if row.published is not None)
