"""Tweets that are hate speech, offensive language or neither (Davidson et al. 2017)."""

from __future__ import annotations

import hashlib
from typing import ClassVar, Literal

from pydantic import Field

from parbench.data.text_source import File, TextSource, labeled, table

TEST_SHARE = 10  # one of so many texts is for testing


class Kind(TextSource, frozen=True):
    """labeled_data.csv; the tenth of the texts with the lowest hashes is for testing."""

    kind: Literal["davidson"]
    table: File = Field(description="labeled_data.csv")
    CLASSES: ClassVar[list[str]] = ["hate speech", "offensive language", "neither"]

    def files(self) -> list[File]:
        """Return the only file."""
        return [self.table]

    def rows(self) -> tuple[list, list]:
        """Return the rows of both parts, from the columns tweet and class; equal tweets fall into
        the same part."""
        rows = table(self.table.content(), self.table.name, ",", ["class", "tweet"], head=True)
        parts: tuple[list, list] = [], []
        for where, (label, text) in rows:
            class_index = labeled(label, ["0", "1", "2"], where)
            tenth = hashlib.sha256(text.encode()).digest()[0] * TEST_SHARE // 256
            parts[tenth == 0].append((class_index, text))
        return parts
