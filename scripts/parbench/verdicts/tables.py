"""Turn metrics.json files into a study's CSV table: statistics, published values, verdicts.

One row for each group and metric; a group is the cells that differ only in their seed.
docs/verdicts.md says how numbers are averaged and verdicts reached.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from parbench import files
from parbench.equivalence.certificate import Certificates
from parbench.plan.published import Published
from parbench.plan.study_plan import StudyPlan
from parbench.runs import operator_metrics
from parbench.runs.metric import Metric
from parbench.runs.metrics import DEFAULT_METRICS, METRICS, TO_PUBLISHED
from parbench.runs.operator_metrics import PROFILED, operator_metric
from parbench.verdicts.controls import TimedPair, bias_of_controls
from parbench.verdicts.groups import Group, compared, groups_of, read_runs, relative_epochs, runs_in
from parbench.verdicts.judging import Verdict, scale_difference, verdict
from parbench.verdicts.matching import PublishedSource
from parbench.verdicts.rows import NUMBERS, Row, write_rows
from parbench.verdicts.sequential import Series
from parbench.verdicts.terms import NOT_REACHED, OK, SHARED, SHORT

# Ratios that pairs measure, with the factor between each and the speedup.
IN_TURNS: dict[str, Callable[[Group, Group], float]] = {
    "speedup": lambda group, baseline: 1.0,
    "throughput_ratio": relative_epochs,
    "parallel_efficiency": lambda group, baseline: baseline.devices / group.devices,
}
SHOWN_OPERATORS = 5  # those with the largest self time, besides the published ones


@dataclass(frozen=True)
class Measured:
    """What a table's rows are made of: a plan, its groups with their runs, its source's values.

    Claims are judged by a comparisons.ClaimBasis.
    """

    plan: StudyPlan
    groups: Mapping[str, Group]
    source: PublishedSource

    def baseline(self, group: Group) -> Group:
        """Return the baseline of a group that has one."""
        assert group.baseline is not None
        return self.groups[group.baseline]

    def metrics(self, group: Group) -> list[Metric]:
        """Return the metrics that a group has rows for."""
        possible = {"accuracy_difference": group.baseline is not None}
        for name in IN_TURNS:
            expected = group.not_run or self.published(METRICS[name], group)[0]
            in_turns = group.baseline_pair is not None or bool(expected)
            possible[name] = group.baseline is not None and in_turns
        possible[TO_PUBLISHED.name] = self._goal(group) is not None
        own_tables = (
            table
            for table in self.plan.study.tables
            if table.holds(group.model, group.variant, bool(group.members))
        )
        named = {name for table in own_tables for name in table.metrics}
        shown = named | {metric.name for metric in METRICS.values() if not metric.only_where_named}
        if group.not_run:
            shown = named or set(DEFAULT_METRICS)
            if any(pair.restarts for pair in group.pairs.values()):
                sides = (metric for metric in METRICS.values() if metric.read_side)
                shown |= {"speedup"} | {each.name for each in sides if group.series(each).values}
        kept = [
            metric
            for metric in METRICS.values()
            if metric.name in shown and group.measures(metric) and possible.get(metric.name, True)
        ]
        return kept + self._operators(group)

    def _operators(self, group: Group) -> list[Metric]:
        """Return the times of single operators: those the source prints, and the largest here."""
        if group.training.profile not in PROFILED:
            return []
        spent: Counter[str] = Counter()
        for run in group.ok:
            spent.update(operator_metrics.self_seconds(run))
        largest = (name for name, _ in spent.most_common(SHOWN_OPERATORS))
        return [
            operator_metric(f"operator_{kind}_seconds:{name}")
            for name in dict.fromkeys([*self.source.operators(group), *largest])
            for kind in ("self", "total")
        ]

    def series(self, metric: Metric, group: Group) -> Series:
        """Return the metric's values over the group's seeds or restarts."""
        if metric.name in IN_TURNS:  # only pairs measure these, not whole trainings
            if (pair := group.baseline_pair) is None:
                return Series({}, "restarts")
            return pair.series.times(IN_TURNS[metric.name](group, self.baseline(group)))
        if group.not_run and not metric.read_side:
            return Series({})
        if metric.name == "accuracy_difference":
            return compared(METRICS["test_accuracy"], group, self.baseline(group))
        if metric is TO_PUBLISHED and (goal := self._goal(group)):
            # The accuracy may have been published for other work.
            return time_to(goal.value, group, scale_difference(group, self.plan.study))
        return group.series(metric)

    def _goal(self, group: Group) -> Published | None:
        return self.source.find(group, METRICS["test_accuracy"])

    def published(self, metric: Metric, group: Group) -> tuple[Published | None, str]:
        """Return (value, ""), or (None, the reason if known)."""
        if metric.name == "speedup" and group.baseline:
            return self.source.speedup(group, self.baseline(group))
        return self.source.find(group, metric), ""

    def verdict(
        self, metric: Metric, group: Group, series: Series, published: Published | None
    ) -> Verdict:
        """Return the verdict on a number, the mean of ``series``, by its ``published`` value."""
        is_speedup = metric.name == "speedup" and (series.values or not group.not_run)
        bound = group.at_most_faster(self.baseline(group)) if is_speedup else math.inf
        bias = ""
        if metric.name in IN_TURNS and group.baseline_pair is not None:
            sides = group, self.baseline(group)
            bias = bias_of_controls(self.groups.values(), sides, "training")
        return verdict(metric, group, self.plan.study, series, published, bound, bias)

    def rows(self, group: Group, uncertified: list[str]) -> Iterator[Row]:
        """Yield the rows of one group; ``uncertified``: why certificates do not cover it."""
        for metric in self.metrics(group):
            series = self.series(metric, group)
            if metric.only_where_measured and not series.values and not group.not_run:
                continue
            published, why = self.published(metric, group)
            judged = self.verdict(metric, group, series, published)
            not_run = None if series.values else group.not_run
            reasons = [
                not_run,
                *group.failures(),
                *uncertified,
                *group.cautions(metric),
                SHARED if group.shared and metric.changes_if_shared and series.values else "",
                SHORT if group.is_short and metric.from_training_steps and series.values else "",
                *series.reasons,
                *judged.reasons,
                why,
                group.note,
            ]
            ratio = None
            if series.mean is not None and published and published.value:
                ratio = series.mean / published.value
            yield Row(
                study=self.plan.study.name,
                group=group.id,
                model=group.model,
                variant=group.variant,
                strategy=group.strategy,
                options=files.canonical_json(group.options),
                hardware=group.hardware.name,
                device=group.hardware.device,
                devices=group.hardware.devices,
                nodes=group.hardware.nodes,
                dataset=group.dataset.name,
                stack=self.plan.stack,
                deployment=self.plan.deployment,
                machine=" ".join(group.machines()),
                status=group.status,
                metric=metric.name,
                unit=metric.unit,
                n_seeds=None if not_run else series.seeds,
                of=series.of,
                **{name: getattr(series, name) for name in NUMBERS},
                published=published.value if published else None,
                published_unit=published.unit if published else "",
                published_table=published.table if published else "",
                ratio=ratio,
                verdict=judged.word,
                reading=self._reading(metric, group, series),
                # Each sentence once: the note may be the stated reason, and seeds may fail alike.
                reason="; ".join(dict.fromkeys(filter(None, reasons))),
                cells=" ".join(group.cells),
            )

    def _reading(self, metric: Metric, group: Group, series: Series) -> str:
        """Return how its time or accuracy compares with the baseline's; empty for other metrics
        and without values."""
        tolerance = self.plan.study.tolerance
        if not series.values or metric.name not in ("speedup", "accuracy_difference"):
            return ""
        if metric.name == "speedup":
            pair = TimedPair(group, self.baseline(group))
            return pair.reading(self.groups.values(), tolerance.relative)
        more, less = (f"{word} than the baseline's" for word in ("higher", "lower"))
        return series.reading(tolerance.accuracy, more, less)


def time_to(accuracy: float, group: Group, reasons: list[str]) -> Series:
    """Return the seconds of training to the first epoch with a test accuracy of ``accuracy``.

    Failed runs count as not having reached it. If any run did not reach it, only the minimum and
    maximum of the others are given: a mean would leave out the slowest. A reason counts the runs
    that did not.
    """
    scored: dict[int, float | None] = {
        run.cell.seed: None for run in group.runs if run.status != OK
    }
    for run in group.ok:
        scores = [
            (epoch.elapsed_seconds, epoch.test_accuracy)
            for epoch in run.history
            if epoch.test_accuracy is not None
        ]
        # The last digits of a float must not decide.
        reached = (seconds for seconds, score in scores if score >= accuracy * (1 - 1e-9))
        if scores:
            scored[run.cell.seed] = next(reached, None)
    values = {number: seconds for number, seconds in scored.items() if seconds is not None}
    if len(values) == len(scored):
        return Series(values, cost=group.seed_seconds, reasons=tuple(reasons))
    reason = f"{NOT_REACHED} by {len(scored) - len(values)} of {len(scored)} seeds"
    if values:
        ends = (f"{end:.4g}" for end in (min(values.values()), max(values.values())))
        reason += f" (the others: {' to '.join(dict.fromkeys(ends))} s)"
    return Series(values, partial=True, reasons=(reason, *reasons))


def write(
    planned: Path, cells: Path, published: Sequence[Path], proofs: Sequence[Path] | None, out: Path
) -> None:
    """Write the table of the study that is ``planned`` to ``out``, from its runs in ``cells``.

    ``published``: CSV files of published values; ``proofs``: certificates of equivalence, or None
    for a table that does not mention them.
    """
    plan = StudyPlan.read(planned)
    certificates = None if proofs is None else Certificates(proofs)
    where = f"reports/evidence/{plan.evidence.file}" if plan.evidence else planned
    source = PublishedSource.read(plan.study.published, published, where)
    runs = read_runs(plan, cells)
    measured = Measured(plan, groups_of(plan, runs, runs_in(cells)), source)
    rows: list[Row] = []
    for group in measured.groups.values():
        # A group that only predicts has the weights of another group, which is itself certified.
        trained = () if group.trained_by else group.trained
        uncertified = certificates.problems(trained) if certificates else []
        rows += measured.rows(group, uncertified)
    write_rows(out, rows)
