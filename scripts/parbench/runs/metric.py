"""Define what the declaration of a metric says; runs/metrics.py declares them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from operator import methodcaller
from typing import Any, Literal

from parbench.runs.records import CellRun, Trained

Read = Callable[[CellRun], float | None]
ReadBoth = Callable[[CellRun | Trained], float | None]


@dataclass(frozen=True)
class Metric:
    """One metric.

    ``description``: its definition, as a phrase in Markdown, for the table in docs/verdicts.md.
    ``kind`` determines when it is comparable with a published value: an ``accuracy`` needs the same
    data and work, an ``absolute`` number also the same hardware, a ``ratio`` the same number of
    devices. ``read`` returns it from one run, or None if the run did not measure it; there is no
    ``read`` if one run is not enough. ``read_side`` returns it from a side of a pair, for groups
    without a run, if sides have it.
    """

    name: str
    label: str  # with the unit, its heading in the report
    _: KW_ONLY
    unit: str
    kind: Literal["accuracy", "absolute", "ratio"]
    description: str
    read: Read | None = None
    read_side: Callable[[Trained], float | None] | None = None
    higher_is_better: bool = False
    depends_on_clock: bool = False  # it is, or is computed from, a time: a busy machine changes it
    from_training_steps: bool = False  # computed from their seconds; few of these say little
    bounded_by_devices: bool = False  # n times the devices make it at most n times as good
    only_where_named: bool = False  # has a row only in tables that name it
    only_where_measured: bool = False  # has no row if no run has a value
    gpus_only: bool = False
    of: Literal["one", "several", "any"] = "one"  # model, several trained together, or either

    @property
    def is_score(self) -> bool:
        """Whether it is a share of the test samples; scores are compared by their difference."""
        return self.kind == "accuracy"

    @property
    def changes_if_shared(self) -> bool:
        """Whether a cell that ran beside others measures another value.

        Ratios of times do not: they come from pairs, which run beside nothing.
        """
        return self.depends_on_clock and self.kind == "absolute"

    def value(self, run: CellRun) -> float | None:
        """Return its value in one run; None if it was not measured, or one run is not enough."""
        return self.read(run) if self.read else None


# What some metrics have in common.
score = partial(Metric, unit="fraction", kind="accuracy", higher_is_better=True)
seconds = partial(Metric, unit="s", kind="absolute", depends_on_clock=True)
rate = partial(Metric, kind="absolute", higher_is_better=True, depends_on_clock=True)
ratio = partial(Metric, kind="ratio", higher_is_better=True, depends_on_clock=True)


def extra(name: str, label: str, **fields: Any) -> Metric:
    """Return the metric for a number of this name that only some cells add to metrics.json."""
    fields = {"unit": "", "kind": "absolute", "only_where_measured": True} | fields
    return Metric(name, label, read=methodcaller("number", name), **fields)


def memory(name: str, label: str, read: ReadBoth, **fields: Any) -> Metric:
    """Return a metric in MiB, which ``read`` gives for a run or a side of a pair."""
    return Metric(name, label, unit="MiB", kind="absolute", read=read, read_side=read, **fields)
