"""The tidy table of a study, as a file: one row a (group, metric)."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from parbench.errors import ParbenchError
from parbench.files import write_atomically
from parbench.printable import printable
from parbench.verdicts.words import too_few


@dataclass(frozen=True)
class Row:
    """A metric of a group; its fields are the columns. A number that is not known is None."""

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
    reason: str
    cells: str

    @property
    def seeds(self) -> int:
        """How many there are."""
        return self.n_seeds or 0

    @property
    def too_few(self) -> str:
        """Why its seeds decide nothing; empty where they are enough."""
        return too_few(self.seeds)


COLUMNS = [each.name for each in fields(Row)]
NUMBERS = ("mean", "std", "ci_low", "ci_high", "min", "max")  # those over the seeds


def known(value: float | None) -> float | None:
    """``value``, or None where it is no finite number."""
    return value if value is not None and math.isfinite(value) else None


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write a study's table."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(asdict, rows))
    write_atomically(path, text.getvalue())


def read_rows(path: Path, fix: str = "delete it and run again") -> list[Row]:
    """The rows that `write_rows` wrote, one or more; ParbenchError with ``fix`` for other files."""
    try:
        head, first, *more = csv.reader(io.StringIO(printable(path.read_text(encoding="utf-8"))))
        return [_row(dict(zip(head, line, strict=True))) for line in (first, *more)]
    except (OSError, KeyError, ValueError) as error:
        raise ParbenchError(f"{path}: not a table of parbench ({error!r}); {fix}") from None


def _row(texts: dict[str, str]) -> Row:
    kinds = {"str": str, "int": int, "int | None": _int, "float | None": _float}
    return Row(**{each.name: kinds[each.type](texts[each.name]) for each in fields(Row)})


def _int(text: str) -> int | None:
    return int(text) if text else None


def _float(text: str) -> float | None:
    return float(text) if text else None
