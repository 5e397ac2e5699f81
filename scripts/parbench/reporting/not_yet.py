"""What a source tells and parbench cannot run yet: its numbers stay visible."""

from __future__ import annotations

from parbench.reporting.study import Study
from parbench.reporting.table import Cell, Notes, absent, make_table, number
from parbench.reporting.text import heading, short


def not_yet_table(study: Study) -> dict | None:
    """A row a published number that no cell is planned for; None where all have cells."""
    notes = Notes()
    rows = [row for entry in study.study.get("not_yet", []) for row in _rows(entry, notes)]
    if not rows:
        return None
    return make_table(
        f"t-{study.name}-not-yet",
        "Not yet",
        [("", ["Model", "Hardware", "Metric"]), ("", ["Published", "Reproduced"])],
        rows,
        caption="Parts of the source that parbench has no cells for.",
        notes=notes,
    )


def _rows(entry: dict, notes: Notes) -> list[list[Cell]]:
    marks = notes.mark(f"{entry['what']}: {entry['reason']}")
    outcome = Cell("not yet", tone="muted", marks=marks)
    if not entry["published"]:
        return [[*[absent("none")] * 3, absent("no published value"), outcome]]
    return [
        [
            Cell(each["model"]),
            Cell(each["hardware"]),
            Cell(heading(each["metric"], each["unit"])),
            number(each["value"], short(each["value"], each["unit"])),
            outcome,
        ]
        for each in entry["published"]
    ]
