"""What a study compares in pairs: every restart, and what disturbed them."""

from __future__ import annotations

import math

from parbench.reporting.study import Study
from parbench.reporting.table import Cell, Notes, absent, interval_cell, make_table, whole
from parbench.reporting.text import ratio_text
from parbench.verdicts import sequential
from parbench.verdicts.equal_sides import EqualSides
from parbench.verdicts.groups import Group
from parbench.verdicts.pairs import Compared, estimated
from parbench.verdicts.words import HOLDS, SAME, UNDECIDED


def in_turns_table(study: Study) -> dict | None:
    """Every comparison of the study, with the ratio of each restart; None where it has none."""
    rows, notes = [], Notes()
    for group in study.groups:
        for baseline, compared in group.pairs.items():
            rows.append(_row(study, group, study.by_id[baseline], compared, notes))
    if not rows:
        return None
    columns = ["Times as fast", "95 % interval", "Restarts", "With disturbed", "Pairs", "Dropped"]
    return make_table(
        f"t-turns-{study.name}",
        "Compared in turns",
        [("", ["Model", "Variant", "Baseline"]), ("", [*columns, "Reading"])],
        rows,
        caption="Both sides of a comparison took turns on the same devices, slice by slice, in "
        "each of several restarts. A pair of slices counts as disturbed where other programs, or "
        "the machine below, took more than 5 % of its time; such a pair is left out and another one "
        "taken. “With disturbed” has them all.",
        notes=notes,
    )


def _row(
    study: Study, group: Group, baseline: Group, compared: Compared, notes: Notes
) -> list[Cell]:
    keys = [Cell(group.model), Cell(group.variant), Cell(baseline.variant)]
    measured, found = estimated(compared.values)
    if not compared.restarts:
        return [*keys, Cell("; ".join(compared.reasons) or "not measured", span=7)]
    each = compared.restarts
    of_all = math.exp(sum(one.of_all for one in each) / len(each))
    return [
        *keys,
        Cell(ratio_text(measured.mean), sort=measured.mean, marks=notes.mark(*compared.reasons)),
        interval_cell(measured, 2) if found else absent("too few restarts"),
        Cell(", ".join(ratio_text(math.exp(one.value)) for one in each)),
        Cell(ratio_text(of_all), sort=of_all),
        whole(sum(one.pairs for one in each)),
        whole(sum(one.dropped for one in each)),
        Cell(_reading(study, group, baseline, compared)),
    ]


def _reading(study: Study, group: Group, baseline: Group, compared: Compared) -> str:
    """In a word: faster, slower, equal, undecided and what it takes; of equal sides, the check."""
    if group is baseline:
        return EqualSides(group).said.partition(": ")[2]
    measured, found = estimated(compared.values)
    if found is None:
        return f"undecided: {measured.too_few}"
    share = study.study["tolerance"]["relative"]
    margin = sequential.ratio_margin(share)
    if sequential.within(found, margin) == SAME:
        return f"equal within {share:.0%}"
    if (word := sequential.beyond(found, ">", 0.0)) == UNDECIDED:
        return f"undecided: {sequential.outlook(found, (0.0, *margin), compared.cost)}"
    return "faster" if word == HOLDS else "slower"
