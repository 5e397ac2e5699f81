"""What a study compares in pairs: every restart, and what disturbed them."""

from __future__ import annotations

import math

from parbench.reporting.study import Study
from parbench.reporting.table import Cell, Notes, interval_cell, make_table, whole
from parbench.reporting.text import ratio_text
from parbench.verdicts.equal_sides import EqualSides
from parbench.verdicts.groups import Group
from parbench.verdicts.pairs import Compared


def in_turns_table(study: Study) -> dict | None:
    """Every comparison of the study, with the ratio of each restart; None where it has none."""
    rows, notes = [], Notes()
    for group in study.groups:
        for word, pairs in (("", group.pairs), (", predicting", group.predicting)):
            for baseline, compared in pairs.items():
                name = group.variant + word
                rows.append(_row(study, group, name, study.by_id[baseline], compared, notes))
    if not rows:
        return None
    columns = ["Times as fast", "95 % interval", "Restarts", "With disturbed", "Pairs", "Disturbed"]
    return make_table(
        f"t-turns-{study.name}",
        "Compared in turns",
        [("", ["Model", "Variant", "Baseline"]), ("", [*columns, "Reading"])],
        rows,
        caption="Both sides of a comparison took turns on the same devices, slice by slice, in "
        "each of several restarts. A pair of slices counts as disturbed where other programs, or "
        "the machine below, took more than 5 % of its time; it is left out (where two others "
        "remain) and another one taken. “With disturbed” has them all.",
        notes=notes,
    )


def _row(
    study: Study, group: Group, name: str, baseline: Group, compared: Compared, notes: Notes
) -> list[Cell]:
    keys = [Cell(group.model), Cell(name), Cell(baseline.variant)]
    measured = compared.series.estimate()
    if not compared.restarts:
        return [*keys, Cell("; ".join(compared.reasons) or "not measured", span=7)]
    each = compared.restarts
    says = compared.reading(study.study["tolerance"]["relative"])
    of_all = math.exp(sum(one.of_all for one in each) / len(each))
    return [
        *keys,
        Cell(ratio_text(measured.mean), sort=measured.mean, marks=notes.mark(*compared.reasons)),
        interval_cell(measured, 2),
        Cell(", ".join(ratio_text(math.exp(one.value)) for one in each)),
        Cell(ratio_text(of_all), sort=of_all),
        whole(sum(one.pairs for one in each)),
        whole(sum(one.disturbed for one in each)),
        # Of equal sides it is whether they may be relied on.
        Cell(
            EqualSides(group).said.partition(": ")[2]
            if compared is group.pairs.get(group.id)
            else says
        ),
    ]
