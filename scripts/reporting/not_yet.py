"""What a source tells and parbench cannot run yet: its numbers stay visible."""

from __future__ import annotations

from reporting.study import Study
from reporting.table import absent_cell, make_table, text_cell
from reporting.text import heading, short


def not_yet_table(study: Study) -> dict | None:
    """A row a published number that no cell is planned for; None where all have cells."""
    rows = [row for entry in study.study.get("not_yet", []) for row in _rows(entry)]
    if not rows:
        return None
    return make_table(
        f"t-{study.name}-not-yet",
        "Not yet",
        [("", ["What", "Model", "Hardware", "Metric"]), ("", ["Published", "Reproduced"])],
        rows,
        caption="Parts of the source that parbench has no cells for.",
    )


def _rows(entry: dict) -> list[list[dict]]:
    outcome = text_cell(f"not yet: {entry['reason']}", tone="muted")
    if not entry["published"]:
        blank = [absent_cell("none")] * 3
        return [[text_cell(entry["what"]), *blank, absent_cell("no published value"), outcome]]
    return [
        [
            text_cell(entry["what"]),
            text_cell(each["model"]),
            text_cell(each["hardware"]),
            text_cell(heading(each["metric"], each["unit"])),
            text_cell(short(each["value"], each["unit"]), sort=each["value"]),
            outcome,
        ]
        for each in entry["published"]
    ]
