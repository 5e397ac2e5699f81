"""SST-2 (Socher et al. 2013) as GLUE's archive has it: sentences of film reviews, and what they
think of the film. Its public test part has no labels; its part `dev` stands for it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from parbench.data.texts import File, TextSource, labelled, table


class Kind(TextSource):
    """train.tsv and dev.tsv, each with the columns sentence and label."""

    kind: Literal["sst2"]
    train: File = Field(description="train.tsv")
    test: File = Field(description="dev.tsv")
    CLASSES: ClassVar[list[str]] = ["negative", "positive"]

    def files(self) -> list[File]:
        """Both."""
        return [self.train, self.test]

    def rows(self) -> tuple[list, list]:
        """By their columns."""
        train, test = (_read(file) for file in self.files())
        return train, test


def _read(file: File) -> list[tuple[int, str]]:
    found = table(file.content(), file.name, "\t", ["sentence", "label"], head=True)
    return [
        (labelled(label, ["0", "1"], f"{file.name}: line {at}"), text)
        for at, (text, label) in enumerate(found, 2)
    ]
