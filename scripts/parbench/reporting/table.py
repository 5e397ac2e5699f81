"""One table and its cells, as HTML and PDF both lay them out."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NotRequired, TypedDict

from parbench.reporting.text import ABSENT, anchor, fixed
from parbench.verdicts.rows import Row
from parbench.verdicts.sequential import Series


class CellEntry(TypedDict):
    """A TableCell in report.json, without empty fields."""

    text: str
    sort: NotRequired[float]
    link: NotRequired[str]
    tone: NotRequired[str]
    span: NotRequired[int]
    read_aloud: NotRequired[str]
    verdict: NotRequired[str]
    marks: NotRequired[Sequence[str]]


class HeadEntry(TypedDict):
    """A heading over several columns or "", and its columns."""

    title: str
    columns: list[str]


class NoteEntry(TypedDict):
    """A note under a table, and its letter."""

    mark: str
    text: str


class TableEntry(TypedDict):
    """A table in report.json."""

    id: str
    title: str
    caption: str
    context: str
    heads: list[HeadEntry]
    rows: list[list[CellEntry]]
    notes: list[NoteEntry]
    empty: str


@dataclass(frozen=True)
class TableCell:
    """The content of a table's cell.

    ``sort``: a number to sort by; ``link``: an anchor; ``tone``: good, bad, warn, muted or plain;
    ``span``: columns; ``read_aloud``: the text for a screen reader; ``verdict``: the verdict that
    it shows; ``marks``: the letters of its notes.
    """

    text: str
    sort: float | None = None
    link: str | None = None
    tone: str | None = None
    span: int | None = None
    read_aloud: str | None = None
    verdict: str | None = None
    marks: Sequence[str] = ()

    def marked(self, marks: Sequence[str]) -> TableCell:
        """Return a copy with these marks."""
        return replace(self, marks=marks)

    def json(self) -> CellEntry:
        """Return the cell for report.json, without empty fields."""
        entry = CellEntry(text=self.text)
        if self.sort is not None:  # six digits are enough to sort by
            entry["sort"] = float(f"{self.sort:.6g}") if isinstance(self.sort, float) else self.sort
        if self.link is not None:
            entry["link"] = self.link
        if self.tone is not None:
            entry["tone"] = self.tone
        if self.span is not None:
            entry["span"] = self.span
        if self.read_aloud is not None:
            entry["read_aloud"] = self.read_aloud
        if self.verdict is not None:
            entry["verdict"] = self.verdict
        if self.marks:
            entry["marks"] = self.marks
        return entry


def absent(read_aloud: str, verdict: str | None = None, marks: Sequence[str] = ()) -> TableCell:
    """Return a dash with the words that a screen reader reads for it."""
    return TableCell(ABSENT, read_aloud=read_aloud, verdict=verdict, marks=marks)


def number(value: float, text: str) -> TableCell:
    """Return a cell of ``text``, sorted by ``value``."""
    return TableCell(text, sort=value)


def count_cell(value: int) -> TableCell:
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

    def json(self) -> list[NoteEntry]:
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
) -> TableEntry:
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
