"""AG News (Zhang et al. 2015): titles and first sentences of news, of four subjects."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from parbench.data.texts import File, TextSource, labelled, table


class Kind(TextSource):
    """train.csv and test.csv: label 1 to 4, title and description, without a line of names."""

    kind: Literal["ag-news"]
    train: File = Field(description="train.csv")
    test: File = Field(description="test.csv")
    CLASSES: ClassVar[list[str]] = ["World", "Sports", "Business", "Sci/Tech"]

    def files(self) -> list[File]:
        """Both."""
        return [self.train, self.test]

    def rows(self) -> tuple[list, list]:
        """Title and description together."""
        train, test = (_read(file) for file in self.files())
        return train, test


def _read(file: File) -> list[tuple[int, str]]:
    columns = ["label", "title", "description"]
    return [
        (
            labelled(label, ["1", "2", "3", "4"], f"{file.name}: row {at}"),
            f"{title} {description}",
        )
        for at, (label, title, description) in enumerate(
            table(file.content(), file.name, ",", columns, head=False), 1
        )
    ]
