"""Published values: what a source prints, and which of it belongs to a group of cells."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from parbench.errors import ParbenchError
from parbench.measure.metrics import METRICS, Metric, is_operator
from parbench.verdicts.groups import Group, on_nodes

# Spellings of published values.
UNIT_ALIASES = {"ratio": "x", "1/s": "samples/s"}
METRIC_ALIASES = {"peak_memory_mib": "peak_memory_device_mib"}
# Columns that only say where a value stands. Rows that differ in nothing else are one value.
PLACE_COLUMNS = {"document", "table", "published_value", "published_unit", "note"}
NEEDED = {"study", "table", "hardware", "nodes", "devices_per_node", "metric", "value", "unit"}


@dataclass(frozen=True)
class Published:
    """A published value in its metric's unit, with the hardware that it was measured on."""

    value: float
    unit: str
    table: str
    hardware: str
    nodes: int
    devices: int  # per node
    work: tuple = ()  # batch and precision, as printed

    @property
    def described_hardware(self) -> str:
        """For example ``2x A100``."""
        return on_nodes(self.nodes, f"{self.devices}x {self.hardware}")

    def has_layout_of(self, group: Group) -> bool:
        """Whether ``group`` used as many nodes and devices."""
        return (group.hardware.nodes, group.hardware.devices) == (self.nodes, self.devices)

    def has_hardware_of(self, group: Group) -> bool:
        """Whether ``group`` used as many devices of the same kind and model."""
        if group.hardware.device == "cpu":
            same_model = self.hardware.lower() == "cpu"
        else:
            names = group.accelerators()
            same_model = bool(names) and all(_names_model(n, self.hardware) for n in names)
        return same_model and self.has_layout_of(group)


def _names_model(name: str, model: str) -> bool:
    """Whether ``NVIDIA A100-SXM4-80GB`` is an ``A100``: whole words, for an A1000 is none."""
    words = [
        f" {''.join(c if c.isalnum() else ' ' for c in text.lower())} " for text in (name, model)
    ]
    return words[1] in words[0]


def read_published(path: str | Path) -> pd.DataFrame:
    """Read a file of published values; ParbenchError when it is missing or lacks a column."""
    try:
        frame = pd.read_csv(path)
    except FileNotFoundError:
        raise ParbenchError(f"{path}: no such file") from None
    except (ValueError, OSError) as error:  # pandas' parser errors are ValueErrors
        raise ParbenchError(f"{path}: cannot be read as CSV ({error})") from None
    if missing := sorted(NEEDED - set(frame.columns)):
        raise ParbenchError(f"{path}: lacks the column(s) {', '.join(missing)}")
    for column in ("value", "nodes", "devices_per_node"):
        numbers = pd.to_numeric(frame[column], errors="coerce")
        if numbers.isna().any():
            line = int(numbers.isna().to_numpy().argmax())
            value = frame[column].iloc[line]
            raise ParbenchError(f"{path}: line {line + 2}: {column} is {value!r}, not a number")
    return frame


class Source:
    """The published values of one source: ``name`` in the column `study` of ``frame``.

    With the name None nothing is published.
    """

    def __init__(self, name: str | None, frame: pd.DataFrame):
        self.name = name
        self.frame = frame

    @classmethod
    def read(cls, name: str | None, paths: Iterable[str | Path]) -> Source:
        """From the one file of ``paths`` that holds it; ParbenchError where none or more does."""
        if name is None:
            return cls(None, pd.DataFrame(columns=["study"]))
        frames = {str(path): read_published(path) for path in paths}
        holding = [path for path, frame in frames.items() if (frame["study"] == name).any()]
        if not holding:
            raise ParbenchError(
                f"published: {name!r}: no row of {', '.join(frames) or 'no file'} has it in column "
                "`study`; add the source's rows, or correct the study's key `published`"
            )
        if len(holding) > 1:
            raise ParbenchError(
                f"published: {name!r} has rows in {' and in '.join(holding)}; keep them in one file"
            )
        return cls(name, frames[holding[0]])

    def find(self, group: Group, metric: Metric) -> Published | None:
        """The value that the group's ``published`` selection names, or None.

        Raises ParbenchError when the selection is ambiguous, names no column, or has another unit.
        """
        rows = self._selected(group, metric=metric.name)
        if rows.empty:
            return None
        _refuse_ambiguity(group, metric, rows)
        row = rows.iloc[0]
        unit = UNIT_ALIASES.get(row["unit"], row["unit"])
        if unit != metric.unit:
            raise ParbenchError(
                f"published values: {_row_name(row)}: {metric.name} is in {row['unit']!r}; "
                f"write it in {metric.unit!r}"
            )
        return Published(
            value=float(row["value"]),
            unit=unit,
            table=", ".join(dict.fromkeys(rows["table"].dropna().astype(str))),
            hardware=str(row["hardware"]),
            nodes=int(row["nodes"]),
            devices=int(row["devices_per_node"]),
            work=tuple(_spelling(row.get(column)) for column in ("batch_size", "precision")),
        )

    def operators(self, group: Group) -> list[str]:
        """The operators that the source tells times of, for the rows that the group names."""
        told = (name.partition(":") for name in self._selected(group).get("metric", []))
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
        if own.work != base.work:
            return None, "published times are of a different batch or precision"
        return Published(
            value=base.value / own.value,
            unit="x",
            table=", ".join(dict.fromkeys((base.table, own.table))),
            hardware=own.hardware,
            nodes=own.nodes,
            devices=own.devices,
        ), ""

    def _selected(self, group: Group, **also: str) -> pd.DataFrame:
        """The rows that the group's ``published`` names, and ``also`` these columns."""
        rows = self.frame
        if group.published is None or self.name is None:
            return rows[:0]
        for column, wanted in {"study": self.name, **group.published, **also}.items():
            if column not in rows.columns:
                raise ParbenchError(
                    f"group {group.id}: published: {column!r} is no column of the published "
                    f"values; columns: {', '.join(rows.columns)}"
                )
            values = rows[column].map(_spelling)
            if column == "metric":
                values = values.replace(METRIC_ALIASES)
            several = wanted if isinstance(wanted, list) else [wanted]
            rows = rows[values.isin([_spelling(each) for each in several])]
        return rows


def _refuse_ambiguity(group: Group, metric: Metric, rows: pd.DataFrame) -> None:
    first = rows.iloc[0]
    for _, other in rows.iloc[1:].iterrows():
        differ = [
            column
            for column in rows.columns
            if column not in PLACE_COLUMNS and _spelling(first[column]) != _spelling(other[column])
        ]
        if not differ:
            continue
        narrow = [column for column in differ if column not in ("value", "unit")] or ["table"]
        raise ParbenchError(
            f"group {group.id}: published: {dict(group.published)} selects two values of "
            f"{metric.name}: {_row_name(first)} and {_row_name(other)}; narrow the selection "
            f"by {' or '.join(narrow)}"
        )


def _row_name(row: pd.Series) -> str:
    place = ", ".join(str(row[key]) for key in ("document", "table") if key in row.index)
    return f"line {row.name + 2} ({place}: {row['value']} {row['unit']})"


def _spelling(value: Any) -> str | float:
    """One spelling of a table's cell, so that 16, 16.0 and "16" agree, and empty with None."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value).strip()
    return "" if math.isnan(number) else number
