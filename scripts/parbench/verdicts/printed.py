"""Published numbers as a source prints them: a row each, with what its rounding allows."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from parbench.errors import ParbenchError
from parbench.verdicts.published import read_published

TEXTS = ("study", "model", "strategy", "options", "hardware", "precision", "note", "table")
OPTIONAL = ("options", "batch_size", "precision", "note", "published_value", "epochs")


@dataclass(frozen=True)
class Printed:
    """One value; ``rounding``: by how much the true one may differ, in the unit of ``value``."""

    line: int  # in the file
    study: str
    model: str
    strategy: str
    options: str
    hardware: str
    precision: str
    note: str
    table: str
    batch_size: str
    nodes: int
    devices_per_node: int
    metric: str
    unit: str
    value: float
    rounding: float
    epochs: float | None

    @property
    def devices(self) -> int:
        """Of all nodes."""
        return self.nodes * self.devices_per_node

    @property
    def least(self) -> float:
        """The smallest number that is printed so."""
        return self.value - self.rounding

    @property
    def most(self) -> float:
        """The largest one."""
        return self.value + self.rounding

    @property
    def setting(self) -> tuple:
        """What is trained on what. Where a row says nothing, that is a value like any other."""
        return self.study, self.model, self.hardware, self.batch_size, self.precision

    @property
    def way(self) -> tuple:
        """How it is trained."""
        return self.strategy, self.options, self.nodes, self.devices

    @property
    def configuration(self) -> tuple:
        """Both: what has one value of each metric."""
        return (*self.setting, *self.way)

    @property
    def shown(self) -> str:
        """``39.2 s``."""
        return f"{self.value:g} {self.unit}"

    def __str__(self) -> str:
        """The configuration in words."""
        parts = [self.model, self.strategy, self.options]
        parts += [f"batch {self.batch_size}"] if self.batch_size else []
        return " ".join(filter(None, [*parts, f"on {self.devices}x {self.hardware}"]))


def read(path: str | Path) -> list[Printed]:
    """The values of a file in the form of studies/published/published_results.csv."""
    frame = read_published(path).copy()
    if missing := {"model", "strategy"} - set(frame.columns):
        raise ParbenchError(f"{path}: lacks the column(s) {', '.join(sorted(missing))}")
    for column in OPTIONAL:
        if column not in frame.columns:
            frame[column] = None
    texts = {name: frame[name].astype(object).fillna("").astype(str) for name in TEXTS}
    rows = frame.assign(**texts).to_dict("records")
    as_text = pd.read_csv(path, dtype=str, keep_default_na=False)
    digits = as_text["published_value" if "published_value" in as_text else "value"]
    return [
        Printed(
            line=line,
            **{name: row[name] for name in (*TEXTS, "metric", "unit", "value")},
            batch_size=_spelling(row["batch_size"]),
            nodes=int(row["nodes"]),
            devices_per_node=int(row["devices_per_node"]),
            rounding=_rounding(printed, row["value"]),
            epochs=None if pd.isna(row["epochs"]) else float(row["epochs"]),
        )
        for line, (row, printed) in enumerate(zip(rows, digits, strict=True), start=2)
    ]


def _rounding(printed: str, value: float) -> float:
    """Half a unit of the last printed digit, in the unit of ``value``."""
    digits = re.fullmatch(r"-?\d+(?:\.(\d+))?", printed.strip())
    if digits is None or float(printed) == 0:
        return 0.0
    return 0.5 * 10 ** -len(digits[1] or "") * abs(value / float(printed))


def _spelling(value: object) -> str:
    return "" if pd.isna(value) else f"{value:g}" if isinstance(value, float) else str(value)


def grouped(rows: Iterable[Printed], key: Callable[[Printed], Hashable]) -> Iterator[list[Printed]]:
    """The rows with the same ``key`` together, in the order of the file."""
    found: dict[Hashable, list[Printed]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    yield from found.values()


@dataclass(frozen=True)
class Faster:
    """Two values of one metric, of few devices and of more.

    ``ratio``: how many times as fast the second is, and at ``least`` is, if rounding was kind.
    """

    few: Printed
    many: Printed
    ratio: float
    least: float


def faster(rows: Iterable[Printed]) -> Iterator[Faster]:
    """Each two of ``rows``."""
    for few, many in itertools.permutations(rows, 2):
        if few.devices < many.devices and min(few.value, many.value) > 0:
            slow, quick = (few, many) if few.unit == "s" else (many, few)
            yield Faster(few, many, slow.value / quick.value, slow.least / quick.most)
