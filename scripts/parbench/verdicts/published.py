"""Which published values belong to a group of cells, and whether its hardware is theirs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from parbench.errors import ParbenchError
from parbench.measure.metrics import METRICS, Metric, is_operator
from parbench.plan.published import Published, rows
from parbench.verdicts.groups import Group, on_nodes

# Spellings of published values.
UNIT_ALIASES = {"ratio": "x", "1/s": "samples/s"}
METRIC_ALIASES = {"peak_memory_mib": "peak_memory_device_mib"}
COLUMNS = [name for name in Published.model_fields if name != "line"]
# Rows that agree in these are one value: the others only say where it stands.
VALUE = [key for key in COLUMNS if key not in ("document", "table", "published_value", "note")]


def described_hardware(value: Published) -> str:
    """For example ``2x A100``."""
    return on_nodes(value.nodes, f"{value.devices_per_node}x {value.hardware}")


def has_layout(value: Published, group: Group) -> bool:
    """Whether ``group`` used as many nodes and devices as the source."""
    layout = group.hardware.nodes, group.hardware.devices
    return layout == (value.nodes, value.devices_per_node)


def has_hardware(value: Published, group: Group) -> bool:
    """Whether ``group`` used as many devices of the same kind and model."""
    if group.hardware.device == "cpu":
        same_model = value.hardware.lower() == "cpu"
    else:
        names = group.accelerators()
        same_model = bool(names) and all(_names_model(name, value.hardware) for name in names)
    return same_model and has_layout(value, group)


def _names_model(name: str, model: str) -> bool:
    """Whether ``NVIDIA A100-SXM4-80GB`` is an ``A100``: whole words, for an A1000 is none."""
    name, model = (re.sub(r"[\W_]", " ", f" {text.lower()} ") for text in (name, model))
    return model in name


class PublishedSource:
    """The published values of one source, those of ``rows`` whose study is ``name``.

    With the name None nothing is published.
    """

    def __init__(self, name: str | None, values: Iterable[Published]):
        self.name = name
        self.rows = [row for row in values if row.study == name]

    @classmethod
    def read(cls, name: str | None, paths: Iterable[str | Path]) -> PublishedSource:
        """From the one file of ``paths`` that holds it; ParbenchError where none or more does."""
        if name is None:
            return cls(None, [])
        found = {str(path): cls(name, rows(path)) for path in paths}
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
        selected = self._selected(group)
        found = [r for r in selected if METRIC_ALIASES.get(r.metric, r.metric) == metric.name]
        if not found:
            return None
        first, *others = found
        for other in others:
            if differ := [key for key in VALUE if getattr(first, key) != getattr(other, key)]:
                narrow = [key for key in differ if key not in ("value", "unit")] or ["table"]
                raise ParbenchError(
                    f"group {group.id}: published: {dict(group.published)} selects two values of "
                    f"{metric.name}: {first.where} and {other.where}; narrow the selection "
                    f"by {' or '.join(narrow)}"
                )
        unit = UNIT_ALIASES.get(first.unit, first.unit)
        if unit != metric.unit:
            raise ParbenchError(
                f"published values: {first.where}: {metric.name} is in {first.unit!r}; "
                f"write it in {metric.unit!r}"
            )
        tables = ", ".join(dict.fromkeys(row.table for row in found))
        return first.model_copy(update={"unit": unit, "table": tables})

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
        ratio = {"value": base.value / own.value, "unit": "x", "table": tables}
        return own.model_copy(update=ratio), ""

    def _selected(self, group: Group) -> list[Published]:
        """The rows that the group's ``published`` names."""
        if group.published is None:
            return []
        for column in group.published:
            if column not in COLUMNS:
                raise ParbenchError(
                    f"group {group.id}: published: {column!r} is no column of the published "
                    f"values; columns: {', '.join(COLUMNS)}"
                )
        return [row for row in self.rows if row.is_one_of(group.published)]
