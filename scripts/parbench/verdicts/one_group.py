"""What a claim's test tells of each group alone: its largest part, or two metrics that are one."""

from __future__ import annotations

import math
from collections.abc import Mapping

from parbench.measure.metrics import METRICS, Metric
from parbench.plan.published import ClaimTest
from parbench.verdicts.comparisons import Comparison, Rebuilt, untested
from parbench.verdicts.selection import measuring
from parbench.verdicts.series import numbered
from parbench.verdicts.words import FAILS, HOLDS, NO_VALUES, REPORTED, UNTESTED

EXACT = 1e-6  # how near two numbers are that are one


def largest(metric: str, study: Rebuilt) -> list[Comparison]:
    """The largest part of a metric in each group that measures it, and in the source."""
    printed = {row.metric for row in study.source.rows if row.metric.startswith(f"{metric}:")}
    made = []
    for group in study.groups:
        own = {name: mean for (of, name), mean in study.means.items() if of == group.id}
        parts = {name: mean for name, mean in own.items() if name.startswith(f"{metric}:")}
        found = {
            name: published.value
            for name in sorted(printed)
            if (published := study.source.find(group, Metric(name, name, "s", "absolute")))
        }
        if parts or found:
            missing = group.not_run or (f"no cell measures {metric}" if group.runs else NO_VALUES)
            made.append(
                Comparison(
                    study.name,
                    REPORTED if parts else UNTESTED,
                    () if parts else (missing,),
                    group=group,
                    published=_first(found),
                    measured=_first(parts),
                )
            )
    return made or [untested(study, f"no cell of {study.name} measures {metric}")]


def equal(test: ClaimTest, study: Rebuilt) -> list[Comparison]:
    """A metric over another that it equals, run by run, in each group that the source has, too."""
    for name in (test.metric, test.against):
        if name not in METRICS or METRICS[name].read is None:
            return [untested(study, f"no cell measures {name}")]
    metric, against = METRICS[test.metric], METRICS[test.against]
    made = []
    for group in measuring(study.groups, test.metric):
        printed = [study.source.find(group, each) for each in (metric, against)]
        if None in printed or not printed[1].value:
            continue
        ratios = [metric.read(run) / value for run in group.ok if (value := against.read(run))]
        if ratios:
            exact = all(math.isclose(ratio, 1, rel_tol=EXACT) for ratio in ratios)
            verdict, reasons = (HOLDS if exact else FAILS), ()
        else:
            verdict = UNTESTED
            none = "no score" if group.runs else NO_VALUES
            reasons = (group.not_run or "; ".join(group.failures()) or none,)
        made.append(
            Comparison(
                study.name,
                verdict,
                reasons,
                group=group,
                published=printed[0].value / printed[1].value,
                measured=numbered(ratios) if ratios else None,
            )
        )
    return made or [untested(study, f"no cell of {study.name} has a score")]


def _first(parts: Mapping[str, float]) -> str | None:
    """The largest of the parts, by the name after the metric's."""
    return max(parts, key=parts.get).partition(":")[2] if parts else None
