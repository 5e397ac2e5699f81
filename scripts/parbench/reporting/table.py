"""One table and its cells, as HTML and PDF both lay them out."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from parbench.reporting.text import ABSENT, anchor, fixed
from parbench.verdicts.rows import Row
from parbench.verdicts.series import Series


@dataclass(frozen=True)
class TableCell:
    """What a cell shows.

    ``sort``: a number to sort by; ``link``: an anchor; ``tone``: good, bad, warn, muted or plain;
    ``span``: columns; ``spoken``: what a screen reader says for it; ``verdict``: of which verdict
    it is; ``marks``: the letters of its notes.
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
        """The same cell with these marks."""
        return replace(self, marks=marks)

    def json(self) -> dict[str, Any]:
        """As in report.json: without what is not known."""
        held = {each.name: getattr(self, each.name) for each in fields(self)}
        if isinstance(self.sort, float):
            held["sort"] = float(f"{self.sort:.6g}")  # enough to sort by
        return {key: value for key, value in held.items() if value not in (None, (), [])}


def absent(spoken: str, **more: Any) -> TableCell:
    """A dash, and the words that a screen reader says for it."""
    return TableCell(ABSENT, spoken=spoken, **more)


def number(value: float, text: str) -> TableCell:
    """``text``, sorted by ``value``."""
    return TableCell(text, sort=value)


def whole(value: int) -> TableCell:
    """A count."""
    return TableCell(str(value), sort=value)


def interval_cell(found: Series | Row, places: int, scale: float = 1.0) -> TableCell:
    """The 95 % interval of a mean, its ends multiplied by ``scale``."""
    if found.ci_low is None:
        return absent(found.too_few or "not measured")
    ends = (fixed(scale * end, places) for end in (found.ci_low, found.ci_high))
    return number(scale * found.ci_low, " to ".join(ends))


class Notes:
    """The notes under one table: each text once, with a letter.

    Of reasons those are left out that begin with ``once``: they are said elsewhere.
    """

    def __init__(self, once: tuple[str, ...] = ()) -> None:
        self.texts: list[str] = []
        self.once = once

    def mark(self, *texts: str) -> Sequence[str]:
        """The letters of these notes; blank texts are left out."""
        wanted = dict.fromkeys(filter(None, texts))
        self.texts += [text for text in wanted if text not in self.texts]
        return [_letters(index) for index in sorted(map(self.texts.index, wanted))] or ()

    def mark_all(self, reason: str) -> Sequence[str]:
        """The letters of the sentences of a row's reason."""
        return self.mark(*(each for each in reason.split("; ") if not each.startswith(self.once)))

    def json(self) -> list[dict]:
        """Letter and text of every note."""
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
    """A table as in report.json.

    The first head holds the keys, which every part repeats when a page is too narrow for all.
    ``empty`` is said in place of a table without rows.
    """
    shown = [[cell.json() for cell in row] for row in rows]
    return {
        "id": anchor(identity),
        "title": title,
        "caption": caption,
        "context": context,
        "heads": [{"title": head, "columns": columns} for head, columns in heads],
        "rows": shown,
        "notes": notes.json() if notes else [],
        "empty": empty,
    }
