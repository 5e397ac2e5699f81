"""One table and its cells, as HTML and PDF both lay them out."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from parbench.reporting.text import ABSENT, anchor, fixed
from parbench.verdicts.rows import Row
from parbench.verdicts.sequential import Series


@dataclass(frozen=True)
class TableCell:
    """The content of a table's cell.

    ``sort``: a number to sort by; ``link``: an anchor; ``tone``: good, bad, warn, muted or plain;
    ``span``: columns; ``spoken``: the text for a screen reader; ``verdict``: the verdict it shows;
    ``marks``: the letters of its notes.
    """

    text: str
    sort: float | None = None
    link: str | None = None
    tone: str | None = None
    span: int | None = None
    spoken: str | None = None
    verdict: str | None = None
    marks: Sequence[str] = ()

    def marked(self, marks: Sequence[str]) -> TableCell:
        """Return a copy with these marks."""
        return replace(self, marks=marks)

    def json(self) -> dict[str, Any]:
        """Return the cell for report.json, without empty fields."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if isinstance(self.sort, float):
            values["sort"] = float(f"{self.sort:.6g}")  # enough to sort by
        return {key: value for key, value in values.items() if value not in (None, (), [])}


def absent(spoken: str, **more: Any) -> TableCell:
    """Return a dash with the words that a screen reader reads for it."""
    return TableCell(ABSENT, spoken=spoken, **more)


def number(value: float, text: str) -> TableCell:
    """Return a cell of ``text``, sorted by ``value``."""
    return TableCell(text, sort=value)


def whole(value: int) -> TableCell:
    """Return the cell of a count."""
    return TableCell(str(value), sort=value)


def interval_cell(found: Series | Row, places: int, scale: float = 1.0) -> TableCell:
    """Return the 95 % interval of a mean, its ends multiplied by ``scale``."""
    if found.ci_low is None or found.ci_high is None:
        return absent(found.too_few or "not measured")
    ends = (fixed(scale * end, places) for end in (found.ci_low, found.ci_high))
    return number(scale * found.ci_low, " to ".join(ends))


class Notes:
    """The notes under one table: each text once, with a letter.

    Reasons that begin with one of ``once`` are left out, since they are given elsewhere.
    """

    def __init__(self, once: tuple[str, ...] = ()) -> None:
        self.texts: list[str] = []
        self.once = once

    def mark(self, *texts: str) -> Sequence[str]:
        """Add notes except blank ones; return their letters."""
        distinct = dict.fromkeys(filter(None, texts))
        self.texts += [text for text in distinct if text not in self.texts]
        return [_letters(index) for index in sorted(map(self.texts.index, distinct))] or ()

    def mark_all(self, reason: str) -> Sequence[str]:
        """Add a row's reasons; return their letters."""
        return self.mark(*(text for text in reason.split("; ") if not text.startswith(self.once)))

    def json(self) -> list[dict]:
        """Return letter and text of every note."""
        return [{"mark": _letters(i), "text": text} for i, text in enumerate(self.texts)]


def _letters(index: int) -> str:
    alphabet = string.ascii_lowercase
    head = alphabet[index // 26 - 1] if index >= 26 else ""
    return head + alphabet[index % 26]


Head = tuple[str, list[str]]  # a heading over several columns or "", and its columns


def make_table(
    identity: str,
    title: str,
    heads: list[Head],
    rows: Iterable[Iterable[TableCell]],
    *,
    caption: str = "",
    context: str = "",
    notes: Notes | None = None,
    empty: str = "No rows.",
) -> dict:
    """Return a table for report.json.

    The first head holds the keys, repeated in every part if a page is too narrow for all.
    ``empty`` replaces a table without rows.
    """
    json_rows = [[cell.json() for cell in row] for row in rows]
    return {
        "id": anchor(identity),
        "title": title,
        "caption": caption,
        "context": context,
        "heads": [{"title": head, "columns": columns} for head, columns in heads],
        "rows": json_rows,
        "notes": notes.json() if notes else [],
        "empty": empty,
    }
