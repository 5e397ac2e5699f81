"""How long training took to the published accuracy, beside how long it took in all."""

from __future__ import annotations

from reporting.paper_tables import KEYS, context, key_cells, outcome_cell, published_cell
from reporting.study import Study
from reporting.table import Notes, make_table, text_cell
from reporting.text import heading

METRIC = "seconds_to_published_accuracy"
COLUMNS = ("test_accuracy", "train_seconds", METRIC)


def table(study: Study) -> dict | None:
    """A row a group with a published accuracy that ran here; None where there is none."""
    groups = [group for group in study.groups if study.cells(group) and study.row(group, METRIC)]
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


def _row(study: Study, group: dict, units: dict[str, str], notes: Notes) -> list[dict]:
    outcomes = [
        outcome_cell(study, group, study.row(group, metric), unit) for metric, unit in units.items()
    ]
    epochs = group["training"]["epochs"]
    marks = notes.mark(*study.row(group, METRIC)["reason"].split("; "))
    return [
        *key_cells(group),
        published_cell(study.row(group, "test_accuracy"), units["test_accuracy"]),
        outcomes[0],
        text_cell(str(epochs), sort=epochs),
        outcomes[1],
        outcomes[2] | ({"marks": marks} if marks else {}),
    ]
