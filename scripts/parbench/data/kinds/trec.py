"""TREC's questions (Li and Roth 2002): each asks for one of six kinds of answer."""

from __future__ import annotations

from typing import ClassVar, Literal

from parbench import files
from parbench.data.text_source import File, Parted, labeled
from parbench.errors import ParbenchError


class Kind(Parted, frozen=True):
    """One question per line, `LABEL:fine question`, in Latin-1 as published, or in UTF-8."""

    kind: Literal["trec"]
    CLASSES: ClassVar[list[str]] = ["ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"]

    def rows_of(self, file: File) -> list[tuple[int, str]]:
        """Return the coarse label and the question of each line."""
        content, rows = file.content(), []
        try:
            content.decode()  # Latin-1 letters are hardly ever valid UTF-8
        except UnicodeDecodeError:
            content = content.decode("latin-1").encode()
        for at, line in enumerate(files.text_of(content, file.name).split("\n"), 1):
            if not line.strip():
                continue
            label, _, text = line.partition(" ")
            where = f"{file.name}: line {at}"
            rows.append((labeled(label.partition(":")[0], self.CLASSES, where), text.strip()))
        if not rows:
            raise ParbenchError(f"{file.name}: it holds no text")
        return rows
