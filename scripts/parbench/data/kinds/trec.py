"""TREC's questions (Li and Roth 2002): what kind of answer each asks for, of six."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from parbench.data.texts import File, TextSource, labelled, lines


class Kind(TextSource):
    """A question a line, `LABEL:fine question`, in Latin-1."""

    kind: Literal["trec"]
    train: File = Field(description="train_5500.label")
    test: File = Field(description="TREC_10.label")
    CLASSES: ClassVar[list[str]] = ["ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"]

    def files(self) -> list[File]:
        """Both."""
        return [self.train, self.test]

    def rows(self) -> tuple[list, list]:
        """By the coarse label of each line."""
        train, test = (_read(file) for file in self.files())
        return train, test


def _read(file: File) -> list[tuple[int, str]]:
    found = []
    for at, line in enumerate(lines(file.content(), file.name, "latin-1"), 1):
        kind, _, text = line.partition(" ")
        where = f"{file.name}: line {at}"
        found.append((labelled(kind.partition(":")[0], Kind.CLASSES, where), text.strip()))
    return found
