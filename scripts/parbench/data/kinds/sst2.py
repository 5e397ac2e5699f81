"""SST-2 (Socher et al. 2013) from GLUE's archive: sentences of film reviews and their sentiment.
The public test part has no labels, so `dev` is used for testing.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from parbench.data.text_source import File, Parted, labeled, table


class Kind(Parted, frozen=True):
    """train.tsv and dev.tsv, each with the columns sentence and label."""

    kind: Literal["sst2"]
    CLASSES: ClassVar[list[str]] = ["negative", "positive"]

    def rows_of(self, file: File) -> list[tuple[int, str]]:
        """Read the columns sentence and label."""
        rows = table(file.content(), file.name, "\t", ["sentence", "label"], head=True)
        return [(labeled(label, ["0", "1"], where), text) for where, (text, label) in rows]
