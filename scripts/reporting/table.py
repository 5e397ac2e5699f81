"""One table and its cells as JSON: all that HTML and PDF need to lay it out."""

from __future__ import annotations

import string
from typing import Any

from reporting.text import ABSENT, anchor


def text_cell(text: str, **more: Any) -> dict:
    """A cell that shows ``text``; ``sort`` (a number), ``link``, ``tone``, ``span``, ``marks``, ...

    What is None is left out.
    """
    if isinstance(more.get("sort"), float):
        more["sort"] = float(f"{more['sort']:.6g}")  # enough to sort by
    return {"text": text} | {key: value for key, value in more.items() if value is not None}


def absent_cell(spoken: str) -> dict:
    """A dash, and the words that a screen reader says for it."""
    return text_cell(ABSENT, spoken=spoken)


class Notes:
    """The notes under one table: each text once, with a letter."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def mark(self, *texts: str) -> list[str]:
        """The letters of these notes; blank texts are left out."""
        wanted = dict.fromkeys(filter(None, texts))
        self.texts += [text for text in wanted if text not in self.texts]
        return [_letters(index) for index in sorted(map(self.texts.index, wanted))]

    def as_json(self) -> list[dict]:
        """Letter and text of every note."""
        return [{"mark": _letters(i), "text": text} for i, text in enumerate(self.texts)]


def _letters(index: int) -> str:
    alphabet = string.ascii_lowercase
    head = alphabet[index // 26 - 1] if index >= 26 else ""
    return head + alphabet[index % 26]


def make_table(
    identity: str,
    title: str,
    heads: list[tuple[str, list[str]]],
    rows: list[list[dict]],
    *,
    caption: str = "",
    context: str = "",
    notes: Notes | None = None,
    empty: str = "No rows.",
) -> dict:
    """A table. ``heads``: (heading over several columns or "", its columns).

    The first head holds the keys, which every part repeats when a page is too narrow for all.
    ``empty`` is said in place of a table without rows.
    """
    return {
        "id": anchor(identity),
        "title": title,
        "caption": caption,
        "context": context,
        "heads": [{"title": head, "columns": columns} for head, columns in heads],
        "rows": rows,
        "notes": notes.as_json() if notes else [],
        "empty": empty,
    }
