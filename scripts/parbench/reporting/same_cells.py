"""The table of the same cells on two machines: their weights, accuracies and ratios of pairs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from parbench.reporting.study_results import StudyResults
from parbench.reporting.table import (
    TableCell,
    TableEntry,
    absent,
    interval_cell,
    make_table,
    number,
)
from parbench.reporting.text import fixed
from parbench.runs.metrics import METRICS
from parbench.verdicts.groups import Group, compared, machines_of
from parbench.verdicts.ratios import ratio_text
from parbench.verdicts.sequential import Series
from parbench.verdicts.terms import NOT_MEASURED

ACCURACY = METRICS["test_accuracy"]
CAPTION = (
    "Cells with the same settings that both machines ran, seed by seed. Same weights: for how "
    "many seeds the trained weights are equal to the last bit. Accuracy: B's minus A's, and "
    "whether the two are equal by the rule of every verdict. Each ratio comes from pairs on one "
    "machine; times of two machines are not divided, since machines do not take turns."
)


def same_cells(studies: list[StudyResults]) -> TableEntry | None:
    """Return the table of equal cells that two machines ran; None if there are none."""
    pairs = [
        (a, b)
        for a, b in itertools.combinations(studies, 2)
        if not set(machines_of(a.own)) & set(machines_of(b.own))
    ]
    rows = [row for a, b in pairs for row in _rows(a, b)]
    if not rows:
        return None
    return make_table(
        "t-machines",
        "The same cells on two machines",
        [
            ("", ["A", "B", "Model", "Variant"]),
            ("", ["Same weights"]),
            ("Accuracy (points)", ["B minus A", "Reading"]),
            ("Times as fast", ["Against", "A", "95 % interval of A", "B", "95 % interval of B"]),
        ],
        rows,
        caption=CAPTION,
    )


def _rows(a: StudyResults, b: StudyResults) -> Iterator[list[TableCell]]:
    for group in a.own:
        other = b.by_id.get(group.id)
        if other is None or not set(group.cells) & set(other.cells) or not (group.ok and other.ok):
            continue
        keys = [TableCell(name) for name in (a.name, b.name, group.model, group.variant)]
        head = [*keys, *_trained(group, other, a.study.tolerance.accuracy)]
        shared = [name for name in group.pairs if name in other.pairs]
        for baseline in shared or [None]:
            ratios = [] if baseline is None else [g.pairs[baseline].series for g in (group, other)]
            against = a.by_id[baseline].variant if baseline else None
            yield [*head, *_in_turns(against, ratios)]


def _trained(ours: Group, theirs: Group, share: float) -> list[TableCell]:
    """Return how many weights are equal, and B's accuracy minus A's with its reading."""
    weights = [{run.cell.seed: run.weights_sha256 for run in g.ok} for g in (ours, theirs)]
    seeds = [number for number in weights[0] if number in weights[1]]
    equal = sum(weights[0][number] == weights[1][number] for number in seeds)
    difference = compared(ACCURACY, theirs, ours)
    points = (
        number(difference.mean, fixed(100 * difference.mean, 2))
        if difference.mean is not None
        else absent("; ".join(difference.reasons) or NOT_MEASURED)
    )
    reading = difference.reading(share, "higher on B", "lower on B") if difference.values else ""
    return [
        TableCell(f"{equal} of {len(seeds)}", sort=equal),
        points,
        TableCell(reading) if reading else absent(NOT_MEASURED),
    ]


def _in_turns(against: str | None, ratios: list[Series]) -> list[TableCell]:
    if against is None:
        return [absent("no pair that both measured")] * 5
    cells = [TableCell(against)]
    for series in ratios:
        mean = absent(NOT_MEASURED)
        if series.mean is not None:
            mean = number(series.mean, ratio_text(series.mean))
        cells += [mean, interval_cell(series, 2)]
    return cells
