"""metrics.json files -> one tidy CSV a study: statistics over seeds, published values, verdicts.

One row a (group, metric); a group is a cell without its seed. docs/verdicts.md says in words how a
number is averaged and how a verdict is reached.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parbench import files
from parbench.measure.metrics import (
    DEFAULT_METRICS,
    METRICS,
    TO_PUBLISHED,
    Metric,
    operator_metric,
    profiled_operators,
    self_seconds,
)
from parbench.verdicts import paired
from parbench.verdicts.certificate import Certificates
from parbench.verdicts.estimates import Estimate, estimate
from parbench.verdicts.groups import Group, groups_of, read_runs
from parbench.verdicts.judging import scale_difference, verdict
from parbench.verdicts.published import Source
from parbench.verdicts.rows import NUMBERS, Row, known, write_rows

SHOWN_OPERATORS = 5  # those with the largest self time, beside the published ones


@dataclass(frozen=True)
class Measured:
    """What rows are made of: a plan, its groups with their runs, the source's values."""

    plan: Mapping
    groups: Mapping[str, Group]
    source: Source

    def baseline(self, group: Group) -> Group | None:
        """What a group's speedup is measured against."""
        return None if group.baseline is None else self.groups[group.baseline]

    def metrics(self, group: Group) -> list[Metric]:
        """The metrics that a group has rows for."""
        is_baseline = any(each.baseline == group.id for each in self.groups.values())
        possible = {"noise_floor": is_baseline} | dict.fromkeys(paired.PAIRED, bool(group.baseline))
        if any(each.pairs for each in self.groups.values()):
            # A study that compares times in turns tells no ratio of others.
            possible |= dict.fromkeys(paired.TIMES, group.baseline in group.pairs)
            possible["noise_floor"] = False
        goal = self.source.find(group, METRICS["test_accuracy"])
        possible[TO_PUBLISHED.name] = goal is not None
        named = {
            name
            for table in self.plan["study"]["tables"]
            if group.stands_in(table)
            for name in table["metrics"]
        }
        kept = [
            metric
            for metric in METRICS.values()
            if group.measures(metric) and possible.get(metric.name, True)
        ]
        if group.not_run:
            kept = [metric for metric in kept if metric.name in (named or DEFAULT_METRICS)]
        else:
            kept = [metric for metric in kept if metric.name in named or not metric.named]
        return kept + self._operators(group)

    def _operators(self, group: Group) -> list[Metric]:
        """Times of single operators: those that the source tells, and the largest here."""
        if group.training.profile != "operators":
            return []
        spent: dict[str, float] = {}
        for run in group.ok:
            for name in profiled_operators(run):
                spent[name] = spent.get(name, 0.0) + self_seconds(run, name)
        largest = sorted(spent, key=lambda name: -spent[name])[:SHOWN_OPERATORS]
        return [
            operator_metric(f"operator_{kind}_seconds:{name}")
            for name in dict.fromkeys([*self.source.operators(group), *largest])
            for kind in ("self", "total")
        ]

    def numbers(self, metric: Metric, group: Group) -> tuple[Estimate, list[str]]:
        """The metric over the group's seeds, and why some or all are missing."""
        if group.not_run:
            return Estimate(0), []
        if metric is TO_PUBLISHED:
            goal = self.source.find(group, METRICS["test_accuracy"])
            found, reasons = paired.time_to(goal.value, group)
            # What its goal was published for may be other work.
            return found, reasons + scale_difference(group, self.plan["study"])
        if metric.name in paired.PAIRED:
            return paired.PAIRED[metric.name](group, self.baseline(group))
        if metric.name == "noise_floor":
            return paired.group_noise_floor(group)
        return estimate(group.values(metric), trim=metric.clocked), []

    def rows(self, group: Group, uncertified: list[str]) -> Iterator[Row]:
        """The rows of one group."""
        for metric in self.metrics(group):
            found, reasons = self.numbers(metric, group)
            if metric.optional and found.n == 0 and not group.not_run:
                continue
            if metric.name == "speedup":
                published, why = self.source.speedup(group, self.baseline(group))
            else:
                published, why = self.source.find(group, metric), ""
            judged = verdict(metric, group, self.plan["study"], found, published)
            reasons = [
                group.not_run,
                *group.failures(),
                *uncertified,
                *group.cautions(metric),
                *reasons,
                *judged.reasons,
                why,
                group.note,
            ]
            # A note may also be the stated reason; seeds may fail alike: say each sentence once.
            reason = "; ".join(dict.fromkeys(filter(None, reasons)))
            yield Row(
                **self._identity(group),
                metric=metric.name,
                unit=metric.unit,
                n_seeds=None if group.not_run else found.n,
                of=found.of,
                **{name: known(getattr(found, name)) for name in NUMBERS},
                published=published.value if published else None,
                published_unit=published.unit if published else "",
                published_table=published.table if published else "",
                ratio=known(
                    found.mean / published.value if published and published.value else None
                ),
                verdict=judged.word,
                reason=reason,
                cells=" ".join(group.cells),
            )

    def _identity(self, group: Group) -> dict[str, Any]:
        """Of all rows of a group."""
        return {
            "study": self.plan["study"]["name"],
            "group": group.id,
            "model": group.model,
            "variant": group.variant,
            "strategy": group.strategy,
            "options": files.canonical_json(group.options),
            "hardware": group.hardware.name,
            "device": group.hardware.device,
            "devices": group.hardware.devices,
            "nodes": group.hardware.nodes,
            "dataset": group.dataset.name,
            "stack": self.plan["stack"],
            "deployment": self.plan["deployment"],
            "machine": " ".join(group.machines()),
            "status": group.status,
        }


def table(study: Measured, certificates: Certificates | None = None) -> list[Row]:
    """The rows of a study. With ``certificates``, `reason` marks what they do not cover."""
    rows = []
    for group in study.groups.values():
        uncertified = certificates.problems(group.cell_runs) if certificates is not None else []
        rows += study.rows(group, uncertified)
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Write a study's table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    need = {"type": Path, "required": True}
    parser.add_argument("--plan", **need, help="results/plan/<study>.json")
    parser.add_argument("--cells", **need, help="folder of the cells' folders")
    parser.add_argument("--published", **need, nargs="+", help="CSV files of published values")
    parser.add_argument(
        "--certificate", type=Path, nargs="*", help="of equivalence; default: nothing is said of it"
    )
    parser.add_argument("--out", **need, help="CSV to write")
    options = parser.parse_args(arguments)
    plan = files.read_json(options.plan)
    certificates = Certificates(options.certificate) if options.certificate is not None else None
    source = Source.read(plan["study"]["published"], options.published)
    runs = (read_runs(plan, options.cells, kind) for kind in ("groups", "pairs"))
    study = Measured(plan, groups_of(plan, *runs), source)
    write_rows(options.out, table(study, certificates))
