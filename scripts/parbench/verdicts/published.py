"""Published values: what sources print, and which of it belongs to a group of cells."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from parbench.errors import ParbenchError
from parbench.measure.metrics import METRICS, Metric, is_operator
from parbench.verdicts.groups import Group, on_nodes

# Spellings of published values.
UNIT_ALIASES = {"ratio": "x", "1/s": "samples/s"}
METRIC_ALIASES = {"peak_memory_mib": "peak_memory_device_mib"}
NUMBERS = ("value", "nodes", "devices_per_node")
OPTIONAL = ("document", "options", "batch_size", "precision", "note")
# What only says where a value stands, and how: rows that differ in nothing else are one value.
PLACE = ("line", "document", "table", "note", "rounding")


@dataclass(frozen=True)
class Published:
    """A row of a file in the form of studies/published/published_results.csv.

    ``rounding``: by how much the true value may differ from the printed one, in the same unit.
    """

    study: str
    document: str
    table: str
    model: str
    strategy: str
    options: str
    hardware: str
    nodes: int
    devices_per_node: int
    batch_size: str
    precision: str
    metric: str
    value: float
    unit: str
    note: str
    line: int
    rounding: float

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

    @property
    def where(self) -> str:
        """Where in the file it stands, and what."""
        place = ", ".join(filter(None, (self.document, self.table)))
        return f"line {self.line} ({place}: {self.value} {self.unit})"

    def __str__(self) -> str:
        """The configuration in words."""
        parts = [self.model, self.strategy, self.options]
        parts += [f"batch {self.batch_size}"] if self.batch_size else []
        return " ".join(filter(None, [*parts, f"on {self.devices}x {self.hardware}"]))

    @property
    def described_hardware(self) -> str:
        """For example ``2x A100``."""
        return on_nodes(self.nodes, f"{self.devices_per_node}x {self.hardware}")

    def has_layout_of(self, group: Group) -> bool:
        """Whether ``group`` used as many nodes and devices."""
        layout = group.hardware.nodes, group.hardware.devices
        return layout == (self.nodes, self.devices_per_node)

    def has_hardware_of(self, group: Group) -> bool:
        """Whether ``group`` used as many devices of the same kind and model."""
        if group.hardware.device == "cpu":
            same_model = self.hardware.lower() == "cpu"
        else:
            names = group.accelerators()
            same_model = bool(names) and all(_names_model(n, self.hardware) for n in names)
        return same_model and self.has_layout_of(group)


COLUMNS = [each.name for each in fields(Published) if each.name not in ("line", "rounding")]


def _names_model(name: str, model: str) -> bool:
    """Whether ``NVIDIA A100-SXM4-80GB`` is an ``A100``: whole words, for an A1000 is none."""
    words = [
        f" {''.join(c if c.isalnum() else ' ' for c in text.lower())} " for text in (name, model)
    ]
    return words[1] in words[0]


def read_published(path: str | Path) -> list[Published]:
    """The rows of a file of published values.

    ParbenchError where it is missing or lacks a column, or a number is none.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, restval="")
            lines, columns = list(reader), reader.fieldnames or []
    except FileNotFoundError:
        raise ParbenchError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ParbenchError(f"{path}: cannot be read as CSV ({error})") from None
    if missing := sorted({*COLUMNS} - {*OPTIONAL, *columns}):
        raise ParbenchError(f"{path}: lacks the column(s) {', '.join(missing)}")
    return [_row(texts, line, path) for line, texts in enumerate(lines, start=2)]


def _row(texts: dict[str, str], line: int, path: str | Path) -> Published:
    row: dict[str, Any] = {name: texts.get(name, "").strip() for name in COLUMNS}
    for column in NUMBERS:
        number = _spelling(row[column])
        if not isinstance(number, float):
            raise ParbenchError(f"{path}: line {line}: {column} is {row[column]!r}, not a number")
        row[column] = number if column == "value" else int(number)
    batch = _spelling(row["batch_size"])
    row["batch_size"] = f"{batch:g}" if isinstance(batch, float) else batch
    rounding = _rounding(texts.get("published_value") or texts["value"], row["value"])
    return Published(**row, line=line, rounding=rounding)


def _rounding(printed: str, value: float) -> float:
    """Half a unit of the last printed digit, in the unit of ``value``."""
    digits = re.fullmatch(r"-?\d+(?:\.(\d+))?", printed.strip())
    if digits is None or float(printed) == 0:
        return 0.0
    return 0.5 * 10 ** -len(digits[1] or "") * abs(value / float(printed))


def _spelling(value: Any) -> str | float:
    """One spelling of a column's value, so that 16, 16.0 and "16" agree."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return "" if value is None else str(value).strip()
    return number if math.isfinite(number) else str(value)


class Source:
    """The published values of one source, those of ``rows`` whose study is ``name``.

    With the name None nothing is published.
    """

    def __init__(self, name: str | None, rows: Iterable[Published]):
        self.rows = [row for row in rows if row.study == name]

    @classmethod
    def read(cls, name: str | None, paths: Iterable[str | Path]) -> Source:
        """From the one file of ``paths`` that holds it; ParbenchError where none or more does."""
        if name is None:
            return cls(None, [])
        found = {str(path): cls(name, read_published(path)) for path in paths}
        holding = [path for path, source in found.items() if source.rows]
        if not holding:
            raise ParbenchError(
                f"published: {name!r}: no row of {', '.join(found) or 'no file'} has it in column "
                "`study`; add the source's rows, or correct the study's key `published`"
            )
        if len(holding) > 1:
            raise ParbenchError(
                f"published: {name!r} has rows in {' and in '.join(holding)}; keep them in one file"
            )
        return found[holding[0]]

    def find(self, group: Group, metric: Metric) -> Published | None:
        """The value that the group's ``published`` selection names, in the metric's unit, or None.

        Raises ParbenchError when the selection is ambiguous, names no column, or has another unit.
        """
        rows = [row for row in self._selected(group) if _metric(row) == metric.name]
        if not rows:
            return None
        _refuse_ambiguity(group, metric, rows)
        unit = UNIT_ALIASES.get(rows[0].unit, rows[0].unit)
        if unit != metric.unit:
            raise ParbenchError(
                f"published values: {rows[0].where}: {metric.name} is in {rows[0].unit!r}; "
                f"write it in {metric.unit!r}"
            )
        return replace(rows[0], unit=unit, table=", ".join(dict.fromkeys(r.table for r in rows)))

    def operators(self, group: Group) -> list[str]:
        """The operators that the source tells times of, for the rows that the group names."""
        told = (row.metric.partition(":") for row in self._selected(group))
        return list(dict.fromkeys(name for what, _, name in told if is_operator(what)))

    def speedup(self, group: Group, baseline: Group) -> tuple[Published | None, str]:
        """The published speedup, from both training times if they are there, else as printed.

        Returns it, or None and the reason why the two times give none.
        """
        own, base = (self.find(each, METRICS["train_seconds"]) for each in (group, baseline))
        if own is None or base is None:
            return self.find(group, METRICS["speedup"]), ""
        if own.hardware != base.hardware:
            between = f"{base.hardware}, {own.hardware}"
            return None, f"published times are of different hardware: {between}"
        if (own.batch_size, own.precision) != (base.batch_size, base.precision):
            return None, "published times are of a different batch or precision"
        tables = ", ".join(dict.fromkeys((base.table, own.table)))
        return replace(own, value=base.value / own.value, unit="x", table=tables), ""

    def _selected(self, group: Group) -> list[Published]:
        """The rows that the group's ``published`` names."""
        if group.published is None:
            return []
        rows = self.rows
        for column, wanted in group.published.items():
            if column not in COLUMNS:
                raise ParbenchError(
                    f"group {group.id}: published: {column!r} is no column of the published "
                    f"values; columns: {', '.join(COLUMNS)}"
                )
            spelled = [_spelling(each) for each in _listed(wanted)]
            rows = [row for row in rows if _spelling(getattr(row, column)) in spelled]
        return rows


def _listed(wanted: Any) -> list:
    return wanted if isinstance(wanted, list) else [wanted]


def _metric(row: Published) -> str:
    return METRIC_ALIASES.get(row.metric, row.metric)


def _refuse_ambiguity(group: Group, metric: Metric, rows: Sequence[Published]) -> None:
    first, *others = rows
    for other in others:
        differ = [
            each.name
            for each in fields(Published)
            if each.name not in PLACE and getattr(first, each.name) != getattr(other, each.name)
        ]
        if not differ:
            continue
        narrow = [column for column in differ if column not in ("value", "unit")] or ["table"]
        raise ParbenchError(
            f"group {group.id}: published: {dict(group.published)} selects two values of "
            f"{metric.name}: {first.where} and {other.where}; narrow the selection "
            f"by {' or '.join(narrow)}"
        )
