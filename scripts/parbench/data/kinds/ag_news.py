"""AG News (Zhang et al. 2015): titles and first sentences of news on four topics."""

from __future__ import annotations

from typing import ClassVar, Literal

from parbench.data.text_source import File, Parted, labeled, table


class Kind(Parted, frozen=True):
    """train.csv and test.csv: label 1 to 4, title and description, without a header line."""

    kind: Literal["ag-news"]
    CLASSES: ClassVar[list[str]] = ["World", "Sports", "Business", "Sci/Tech"]

    def rows_of(self, file: File) -> list[tuple[int, str]]:
        """Return the label and text, title and description joined, of each row."""
        columns = ["label", "title", "description"]
        rows = table(file.content(), file.name, ",", columns, head=False)
        return [
            (labeled(label, ["1", "2", "3", "4"], where), f"{title} {description}")
            for where, (label, title, description) in rows
        ]
