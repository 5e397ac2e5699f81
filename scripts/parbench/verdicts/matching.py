"""Find the published values of a group of cells, and compare its hardware with theirs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from parbench.errors import ParbenchError
from parbench.plan.published import Published, rows
from parbench.plan.selection import is_gpu_model
from parbench.plan.yaml_file import words_of
from parbench.runs.metric import Metric
from parbench.runs.metrics import METRICS
from parbench.runs.operator_metrics import is_operator
from parbench.verdicts.groups import Group, on_nodes

# From spellings of published values to ours.
UNIT_ALIASES = {"ratio": "x", "1/s": "samples/s"}
METRIC_ALIASES = {"peak_memory_mib": "peak_memory_device_mib"}
COLUMNS = [name for name in Published.model_fields if name != "line"]
# Rows that agree in these are one value: the other columns only say where it appears.
VALUE = [key for key in COLUMNS if key not in ("document", "table", "published_value", "note")]


def described_hardware(value: Published) -> str:
    """Return, for example, ``2x A100``."""
    return on_nodes(value.nodes, f"{value.devices_per_node}x {value.hardware}")


def has_layout(value: Published, group: Group) -> bool:
    """Return whether ``group`` used as many nodes, and devices per node, as the source."""
    layout = group.hardware.nodes, group.hardware.devices
    return layout == (value.nodes, value.devices_per_node)


def has_hardware(value: Published, group: Group) -> bool:
    """Return whether ``group`` used as many devices of the same kind and model."""
    if group.hardware.device == "cpu":
        same_model = value.hardware.lower() == "cpu"
    else:
        names = group.accelerators()
        same_model = bool(names) and all(is_gpu_model(name, value.hardware) for name in names)
    return same_model and has_layout(value, group)


class PublishedSource:
    """The published values of one source: the rows of ``values`` whose study is ``name``.

    ``path`` is the file that holds them. If ``name`` is None, nothing is published.
    """

    def __init__(self, name: str | None, values: Iterable[Published], path: str | Path = ""):
        self.name, self.path = name, path
        self.rows = [row for row in values if row.study == name]

    @classmethod
    def read(
        cls, name: str | None, paths: Iterable[str | Path], where: str | Path
    ) -> PublishedSource:
        """Read it from the one of ``paths`` that holds it.

        ``where``: the file that names it, for a message. Raises ParbenchError if none or several of
        ``paths`` hold it.
        """
        if name is None:
            return cls(None, [])
        sources = {str(path): cls(name, rows(path), path) for path in paths}
        holding = [path for path, source in sources.items() if source.rows]
        if not holding:
            raise ParbenchError(
                f"{where}: published: {name!r}: no row of {', '.join(sources) or 'no file'} has it "
                "in column `study`; add the source's rows, correct the study's key `published` or, "
                "if the source is your own, name its study by its path (--config "
                "studies=[<path>]) or its file (--published)"
            )
        if len(holding) > 1:
            raise ParbenchError(
                f"{where}: published: {name!r} has rows in {' and in '.join(holding)}; keep them "
                "in one file"
            )
        return sources[holding[0]]

    def find(self, group: Group, metric: Metric) -> Published | None:
        """Return the value that the group's ``published`` selects, in the metric's unit, or None.

        Raises ParbenchError if the selection is ambiguous, has an unknown column, or another unit.
        """
        selected = self.selected(group)
        matching = [
            row for row in selected if METRIC_ALIASES.get(row.metric, row.metric) == metric.name
        ]
        if not matching:
            return None
        first, *others = matching
        for other in others:
            if differing := [key for key in VALUE if getattr(first, key) != getattr(other, key)]:
                columns = [key for key in differing if key not in ("value", "unit")] or ["table"]
                selection = words_of(dict(group.published or {}))
                raise ParbenchError(
                    f"group {group.id}: published: {selection} selects two values "
                    f"of {metric.name} in {self.path or 'its source'}: {first.where} and "
                    f"{other.where}; narrow the selection by {' or '.join(columns)}"
                )
        unit = UNIT_ALIASES.get(first.unit, first.unit)
        if unit != metric.unit:
            raise ParbenchError(
                f"published values: {first.where}: {metric.name} is in {first.unit!r}; "
                f"write it in {metric.unit!r}"
            )
        tables = ", ".join(dict.fromkeys(row.table for row in matching))
        return first.model_copy(update={"unit": unit, "table": tables})

    def operators(self, group: Group) -> list[str]:
        """Return the operators whose times are published in the rows that the group selects."""
        metrics = (row.metric.partition(":") for row in self.selected(group))
        return list(dict.fromkeys(name for what, _, name in metrics if is_operator(what)))

    def speedup(self, group: Group, baseline: Group) -> tuple[Published | None, str]:
        """Return the published speedup: from both training times if published, else as printed.

        If the two times cannot be compared, return None and the reason.
        """
        own, base = (self.find(side, METRICS["train_seconds"]) for side in (group, baseline))
        if own is None or base is None:
            return self.find(group, METRICS["speedup"]), ""
        if own.hardware != base.hardware:
            kinds = f"{base.hardware}, {own.hardware}"
            return None, f"published times come from different hardware: {kinds}"
        if (own.batch_size, own.precision) != (base.batch_size, base.precision):
            return None, "published times come from a different batch size or precision"
        tables = ", ".join(dict.fromkeys((base.table, own.table)))
        changes = {"value": base.value / own.value, "unit": "x", "table": tables}
        return own.model_copy(update=changes), ""

    def is_on_its_hardware(self, group: Group) -> bool:
        """Return whether the group used the devices of any published row that it selects."""
        return any(has_hardware(row, group) for row in self.selected(group))

    def selected(self, group: Group) -> list[Published]:
        """Return the rows that the group's ``published`` selects."""
        if group.published is None:
            return []
        for column in group.published:
            if column not in COLUMNS:
                raise ParbenchError(
                    f"group {group.id}: published: {column!r} is not a column of the published "
                    f"values; columns: {', '.join(COLUMNS)}"
                )
        return [row for row in self.rows if row.is_one_of(group.published)]
