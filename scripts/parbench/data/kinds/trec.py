"""TREC's questions (Li and Roth 2002): each asks for one of six kinds of answer."""

from __future__ import annotations

from typing import ClassVar, Literal

from parbench.data.texts import File, Parted, labelled, lines


class Kind(Parted):
    """One question per line, `LABEL:fine question`, in Latin-1 as published, or in UTF-8."""

    kind: Literal["trec"]
    CLASSES: ClassVar[list[str]] = ["ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"]

    def rows_of(self, file: File) -> list[tuple[int, str]]:
        """Return the coarse label and the question of each line."""
        content, rows = file.content(), []
        for at, line in enumerate(lines(content, file.name, _encoding(content)), 1):
            if not line.strip():
                continue
            label, _, text = line.partition(" ")
            where = f"{file.name}: line {at}"
            rows.append((labelled(label.partition(":")[0], self.CLASSES, where), text.strip()))
        return rows


def _encoding(content: bytes) -> str:
    """Return the encoding of ``content``: letters of Latin-1 are hardly ever valid UTF-8."""
    try:
        content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8-sig"
