"""The tidy table of a study, as a file: one row for each group and metric."""
# Only some of pandas' methods are typed.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import pandas as pd

from parbench.errors import ParbenchError
from parbench.files import read_text, write_atomically
from parbench.printable import printable
from parbench.verdicts.terms import too_few


@dataclass(frozen=True)
class Row:
    """A metric of a group; the fields are the table's columns. An unknown number is None."""

    study: str
    group: str
    model: str
    variant: str
    strategy: str
    options: str
    hardware: str
    device: str
    devices: int
    nodes: int
    dataset: str
    stack: str
    deployment: str
    machine: str
    status: str
    metric: str
    unit: str
    n_seeds: int | None
    of: str  # what each value comes from, `n_seeds` of them: `seeds`, or `restarts` of a pair
    mean: float | None
    std: float | None
    ci_low: float | None
    ci_high: float | None
    min: float | None
    max: float | None
    published: float | None
    published_unit: str
    published_table: str
    ratio: float | None
    verdict: str
    reading: str  # of a speedup or difference: what it says without a published value
    reason: str
    cells: str

    @property
    def seeds(self) -> int:
        """The number of seeds or restarts."""
        return self.n_seeds or 0

    @property
    def too_few(self) -> str:
        """Why its seeds or restarts decide nothing; empty if they are enough."""
        return too_few(self.seeds, self.of)


NUMBERS = ("mean", "std", "ci_low", "ci_high", "min", "max")  # statistics over the seeds
KINDS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "int | None": lambda text: int(text) if text else None,
    "float | None": lambda text: float(text) if text else None,
}
COLUMNS = {field.name: KINDS[str(field.type)] for field in fields(Row)}


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write a study's table without unprintable characters, which a program's error may contain."""
    values = [[getattr(row, name) for name in COLUMNS] for row in rows]
    frame = pd.DataFrame(values, columns=list(COLUMNS), dtype=object)
    write_atomically(path, printable(frame.to_csv(index=False, lineterminator="\n")))


def read_rows(path: Path, fix: str = "delete it and run again") -> list[Row]:
    """Read at least one row that `write_rows` wrote; ParbenchError with ``fix`` for other files."""
    try:
        text = io.StringIO(read_text(path, fix=fix))
        frame = pd.read_csv(text, dtype=str, keep_default_na=False)
        rows = cast(list[dict[str, str]], frame.to_dict("records"))
        if rows:
            return [
                Row(**{name: kind(row[name]) for name, kind in COLUMNS.items()}) for row in rows
            ]
        problem = "it has no rows"
    except KeyError as error:
        problem = f"it has no column {error}"
    except ValueError as error:
        problem = str(error)
    raise ParbenchError(f"{path}: not a table of parbench ({problem}); {fix}")
