"""How long training took to the published accuracy, beside how long it took in all."""

from __future__ import annotations

from parbench.measure.metrics import TO_PUBLISHED
from parbench.reporting.paper_tables import KEYS, context, key_cells, outcome_cell, published_cell
from parbench.reporting.study import Study
from parbench.reporting.table import Cell, Notes, make_table, whole
from parbench.reporting.text import heading
from parbench.verdicts.groups import Group

METRIC = TO_PUBLISHED.name
COLUMNS = ("test_accuracy", "train_seconds", METRIC)


def table(study: Study) -> dict | None:
    """A row a group with a published accuracy that ran here; None where there is none."""
    groups = [group for group in study.groups if group.cell_runs and study.row(group, METRIC)]
    if not groups:
        return None
    units = {metric: study.unit(metric) for metric in COLUMNS}
    units[METRIC] = units["train_seconds"]  # the two are there to be compared
    accuracy, seconds, reached = (heading(metric, unit) for metric, unit in units.items())
    notes = Notes()
    return make_table(
        f"t-{study.name}-time-to-accuracy",
        "Time to the published accuracy",
        [("", KEYS), ("", [f"Published: {accuracy}", accuracy, "Epochs", seconds, reached])],
        [_row(study, group, units, notes) for group in groups],
        caption="Seconds of training, evaluation not counted, at the end of the first epoch after "
        "which the test accuracy was at least the published one; beside it, all epochs. Where a "
        "seed never got there, there is no mean: it would leave out the slowest.",
        context=context(study, groups),
        notes=notes,
    )


def _row(study: Study, group: Group, units: dict[str, str], notes: Notes) -> list[Cell]:
    accuracy, seconds, reached = (
        outcome_cell(study, group, study.row(group, metric), unit) for metric, unit in units.items()
    )
    return [
        *key_cells(group),
        published_cell(study.row(group, "test_accuracy"), units["test_accuracy"]),
        accuracy,
        whole(group.training.epochs),
        seconds,
        reached.marked(notes.mark_all(study.row(group, METRIC).reason)),
    ]
