"""Judge reproduced numbers against their published values, by the one rule (docs/verdicts.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from parbench.plan.published import Published
from parbench.plan.study_plan import About
from parbench.runs.metric import Metric
from parbench.runs.operator_metrics import is_operator
from parbench.verdicts import sequential, terms
from parbench.verdicts.groups import Group, few_steps
from parbench.verdicts.matching import described_hardware, has_hardware, has_layout
from parbench.verdicts.sequential import Band, Interval, Series

NO_PAIR = "no pair (`pairs`) compares them in turns"


@dataclass(frozen=True)
class Verdict:
    """The verdict on one number, with its reasons; ``boundaries``: the values that its interval
    must exclude before the verdict is known."""

    word: str
    reasons: list[str]
    boundaries: tuple[float, ...] = ()


def verdict(
    metric: Metric,
    group: Group,
    study: About,
    series: Series,
    published: Published | None,
    bound: float = math.inf,
    bias: str = "",
) -> Verdict:
    """Return the verdict on one number of ``group``; ``study``: as planned.

    ``series``: the number's values; ``bound``: the upper bound on a ratio; ``bias``: why the pair
    that measures it decides nothing.
    """
    if group.not_run and not series.values:
        return Verdict(terms.NOT_RUN, [])
    if why := _why_not_measured(metric, group, series):
        return Verdict(terms.NOT_MEASURED, [why])
    if published is None:
        return Verdict(terms.NO_PUBLISHED_VALUE, [])
    forbidding, caveats = _differences(metric, group, study, published)
    if bias:
        forbidding.append(bias)
    if forbidding := [*forbidding, *beyond(series, published.value, bound)]:
        return Verdict(terms.NOT_COMPARABLE, forbidding)
    if (interval := series.interval()) is None:
        value_range = f" ({series.min:.4g} to {series.max:.4g})" if series.values else ""
        return Verdict(terms.UNDECIDED, [series.too_few + value_range, *caveats])
    share = study.tolerance.share(not metric.is_score)
    if metric.kind == "ratio":
        word, boundaries = size_of_effect(series, interval, (published.value,), share)
        outlook = [series.outlook(boundaries)] if boundaries else []
        opposed = opposite(interval, math.log(published.value) if series.logs else published.value)
        word, boundaries = (terms.OPPOSITE, ()) if opposed else (word, boundaries)
        return Verdict(word, [*outlook, *caveats], boundaries)
    margin = series.margin(share)[1] if metric.is_score else share * abs(published.value)
    ends = published.value - margin, published.value + margin
    difference = interval.mean - published.value
    reasons = [f"differs by {difference:+.2g} (tolerance {margin:.2g})"]
    word, boundaries = _size(interval, (published.value, published.value), ends)
    outlook = [series.outlook(boundaries)] if boundaries else []
    return Verdict(word, [*reasons, *outlook, *caveats], boundaries)


def size_of_effect(
    series: Series, interval: Interval, published: tuple[float, ...], share: float
) -> tuple[str, tuple[float, ...]]:
    """Return how the ratio, or difference, of a ``series`` compares by its ``interval`` with the
    ``published`` one or the two ends of a published range; and, if that is not known, the
    boundaries that the interval must exclude.

    ``share``: the tolerance, of a ratio or as a difference. Smaller is closer to no effect.
    """
    first, last = min(published), max(published)
    low, high = (math.log(first), math.log(last)) if series.logs else (first, last)
    margin = series.margin(share)
    region = low + margin[0], high + margin[1]
    word, boundaries = _size(interval, (low, high), region)
    if high < 0:  # smaller is closer to no effect
        word = {terms.SMALLER: terms.LARGER, terms.LARGER: terms.SMALLER}.get(word, word)
    return word, boundaries


def _size(interval: Interval, ends: Band, region: Band) -> tuple[str, tuple[float, ...]]:
    """Return the word for a size, published as ``ends``, by the tolerated ``region``; and, if it is
    not known, the boundaries that its ``interval`` must exclude."""
    if sequential.within(interval, region) == sequential.HOLDS:
        return terms.AS_PUBLISHED, ()
    if interval.high < ends[0]:
        return terms.SMALLER, ()
    if interval.low > ends[1]:
        return terms.LARGER, ()
    return terms.NOT_TOLD_APART, (*ends, *region)


def opposite(interval: Interval, effect: float) -> bool:
    """Return whether the whole interval of a ratio's log, or a difference, has the opposite sign of
    the published ``effect``."""
    return (effect > 0 and interval.high < 0) or (effect < 0 and interval.low > 0)


def beyond(series: Series, published: float, most: float, least: float = 0.0) -> list[str]:
    """Return why a published ratio cannot be reached here; empty if it can, or if the interval of
    ``series`` reaches it, since the bound of models side by side is itself measured."""
    if series.ends and series.ends[0] <= published <= series.ends[1]:
        return []
    opening = f"published {published:.3g}, beyond what can be reached here: "
    if published > most:
        return [f"{opening}at most {most:.2f}"]
    return [f"{opening}at least {least:.2f}"] if published < least else []


def why_below_devices(one: Group, other: Group) -> str:
    """Return what bounds the speedup between two groups below the ratio of their devices; empty if
    nothing does."""
    fast, slow = (one, other) if one.cores > other.cores else (other, one)
    most = fast.at_most_faster(slow)
    if most == fast.most_by_devices(slow):
        return ""
    if fast.is_beside_others:
        return "since each of the models side by side has one device"
    if most == fast.work.pipeline_bound:
        return "the most that its pipeline of micro-batches can gain"
    return "the sum of the models' times here over the longest"


def _why_not_measured(metric: Metric, group: Group, series: Series) -> str:
    """Return why a group that was run did not measure the metric; empty otherwise."""
    if metric.is_score:
        return few_steps(group.training.steps)
    if is_operator(metric.name) and group.ok and not series.values:
        return "not among the operators that took the most time here"
    if metric.kind == "ratio" and group.baseline_pair is None:
        return NO_PAIR
    return ""


def _differences(
    metric: Metric, group: Group, study: About, published: Published
) -> tuple[list[str], list[str]]:
    """Return what forbids comparing the metric with its published value, and mere caveats."""
    forbidding = group.cautions(metric)
    if difference := group.difference(metric):
        forbidding.append(f"differs from the source: {difference}")
    assumed, hardware = ", ".join(study.assumed), []
    caveats = [f"not stated by the source, assumed: {assumed}"] if assumed else []
    if not has_hardware(published, group):
        here = group.describe_hardware()
        hardware = [f"published on {described_hardware(published)}, here on {here}"]
    scale = scale_difference(group, study)
    if metric.kind == "ratio":
        forbidding += [] if has_layout(published, group) else hardware
        return forbidding, [*hardware, *scale, *caveats]
    if metric.kind == "absolute":
        return [*forbidding, *scale, *caveats, *hardware], []
    return [*forbidding, *scale], caveats


def scale_difference(group: Group, study: About) -> list[str]:
    """Return how the group differs from the published scale and the source's dataset."""
    changed = group.scaled or [
        f"{key} {value} by config.yaml" for key, value in dict(study.override.settings).items()
    ]
    reasons = [f"scaled: {', '.join(changed)}"] if changed else []
    if group.dataset.name != study.source_dataset:
        reasons.append(
            f"published on the dataset {study.source_dataset}, here on {group.dataset.name}"
        )
    return reasons
