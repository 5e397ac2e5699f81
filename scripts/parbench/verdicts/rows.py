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
    """``value``, or None where it is not a number."""
    return None if value is None or math.isnan(value) else value


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
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParbenchError(f"{path}: cannot be read ({error}); {fix}") from None
    reader = csv.DictReader(io.StringIO(printable(text)))
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or [])]
    if missing:
        raise ParbenchError(
            f"{path}: not a table of parbench, no column {', '.join(missing)}; {fix}"
        )
    rows = [_row(texts, f"{path}, line {line}", fix) for line, texts in enumerate(reader, start=2)]
    if not rows:
        raise ParbenchError(f"{path}: no row; {fix}")
    return rows


def _row(texts: dict, where: str, fix: str) -> Row:
    if None in texts or None in texts.values():
        raise ParbenchError(f"{where}: not as many fields as the heading has; {fix}")
    values = {}
    for each in fields(Row):
        values[each.name] = text = texts[each.name]
        if each.type != "str":
            number = _number(text, f"{where}, {each.name}", fix)
            whole = each.type.startswith("int") and number is not None
            values[each.name] = int(number) if whole else number
    return Row(**values)


def _number(text: str, where: str, fix: str) -> float | None:
    if text == "":
        return None
    try:
        value = float(text)
    except ValueError:
        raise ParbenchError(f"{where}: {text!r} is not a number; {fix}") from None
    # The noise floor of two wild seeds has no upper end: shown as unknown.
    return value if math.isfinite(value) else None
