"""Judge reproduced numbers against their published values, by the one rule (docs/verdicts.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from parbench.measure.metrics import Metric, is_operator
from parbench.plan.published import Published
from parbench.verdicts import sequential, words
from parbench.verdicts.groups import Group, few_steps
from parbench.verdicts.published import described_hardware, has_hardware, has_layout
from parbench.verdicts.series import Series

NO_PAIR = "no pair (`pairs`) compares them in turns"


def verdict(
    metric: Metric,
    group: Group,
    study: Mapping,
    series: Series,
    published: Published | None,
    bound: float = math.inf,
) -> tuple[str, list[str]]:
    """Return the verdict on one number of ``group``, and why; ``study``: as the plan has it.

    ``series``: the number's values; ``bound``: the upper bound on a ratio.
    """
    if group.not_run:
        return words.NOT_RUN, []
    if why := _why_not_measured(metric, group, series):
        return words.NOT_MEASURED, [why]
    if published is None:
        return words.NO_PUBLISHED_VALUE, []
    forbidding, caveats = _differences(metric, group, study, published)
    if forbidding := [*forbidding, *beyond(published.value, bound)]:
        return words.NOT_COMPARABLE, forbidding
    if series.too_few:
        value_range = f" ({series.min:.4g} to {series.max:.4g})" if series.values else ""
        return words.UNDECIDED, [series.too_few + value_range, *caveats]
    if metric.kind == "ratio":
        return position(published.value, series), caveats
    word, reasons = _near(metric, series, published.value, study["tolerance"])
    return word, [*reasons, *caveats]


def _near(
    metric: Metric, series: Series, published: float, tolerance: Mapping
) -> tuple[str, list[str]]:
    """Return the verdict by the tolerance around the published value, and the reasons."""
    if metric.is_score:
        margin = series.margin(tolerance["accuracy"])[1]
    else:
        margin = tolerance["relative"] * abs(published)
    interval, region = series.interval(), (published - margin, published + margin)
    reasons = [f"differs by {interval.mean - published:+.2g} (tolerance {margin:.2g})"]
    word = sequential.within(interval, region)
    if word == words.HOLDS:
        return words.REPRODUCED, reasons
    if word == words.FAILS:
        better = (interval.mean > published) == metric.higher_is_better
        return (words.SUSPICIOUS if better else words.NOT_REPRODUCED), reasons
    return word, [*reasons, series.outlook(region)]


def position(published: float, found: Series) -> str:
    """Return where a published ratio or difference lies relative to the interval of ``found``."""
    if published > found.ci_high:
        return words.ABOVE
    return words.BELOW if published < found.ci_low else words.INSIDE


def beyond(published: float, most: float, least: float = 0.0) -> list[str]:
    """Return why a published ratio cannot be reached here; empty if it can."""
    opening = f"published {published:.3g}, beyond what can be reached here: "
    if published > most:
        return [f"{opening}at most {most:.2f}"]
    return [f"{opening}at least {least:.2f}"] if published < least else []


def _why_not_measured(metric: Metric, group: Group, series: Series) -> str:
    """Return why a group that was run did not measure the metric; empty otherwise."""
    if metric.is_score:
        return few_steps(group.training.steps)
    if is_operator(metric.name) and group.ok and not series.values:
        return "not among the operators that took the time here"
    if metric.kind == "ratio" and group.baseline not in group.pairs:
        return NO_PAIR
    return ""


def _differences(
    metric: Metric, group: Group, study: Mapping, published: Published
) -> tuple[list[str], list[str]]:
    """Return what forbids comparing the metric with its published value, and mere caveats."""
    forbidding = group.cautions(metric)
    if group.differs:
        forbidding.append(f"differs from the source: {group.differs}")
    assumed, hardware = ", ".join(study["assumed"]), []
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


def scale_difference(group: Group, study: Mapping) -> list[str]:
    """Return how the group differs from the published scale and the source's dataset."""
    changed = group.scaled or [
        f"{key} {value} by config.yaml"
        for key, value in (study.get("override") or {}).get("settings", {}).items()
    ]
    reasons = [f"scaled: {', '.join(changed)}"] if changed else []
    source = study.get("source_dataset") or study["dataset"]
    if group.dataset.name != source:
        reasons.append(f"published on the dataset {source}, here on {group.dataset.name}")
    return reasons
