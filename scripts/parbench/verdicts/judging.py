"""What a reproduced number says of its published value, by the one rule (docs/verdicts.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from parbench.measure.metrics import Metric, is_operator
from parbench.plan.published import Published
from parbench.verdicts import sequential
from parbench.verdicts.by_seed import few_steps
from parbench.verdicts.groups import Group
from parbench.verdicts.published import described_hardware, has_hardware, has_layout
from parbench.verdicts.series import Series
from parbench.verdicts.words import (
    ABOVE,
    BELOW,
    DIFFERENT,
    INSIDE,
    NO_PUBLISHED_VALUE,
    NOT_COMPARABLE,
    NOT_MEASURED,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    SAME,
    SUSPICIOUS,
    UNDECIDED,
)

NO_PAIR = "no pair (`pairs`) compares them in turns"


@dataclass(frozen=True)
class Verdict:
    """A word of `words.VERDICTS`, and why."""

    word: str
    reasons: tuple[str, ...] = ()


def verdict(
    metric: Metric,
    group: Group,
    study: Mapping,
    series: Series,
    published: Published | None,
    bound: float = math.inf,
) -> Verdict:
    """The verdict on one number of ``group`` in ``study``, as its plan has it.

    ``series``: its values; ``bound``: what a ratio may at most be.
    """
    if group.not_run:
        return Verdict(NOT_RUN)
    if why := _why_not_measured(metric, group, series):
        return Verdict(NOT_MEASURED, (why,))
    if published is None:
        return Verdict(NO_PUBLISHED_VALUE)
    reasons = _why_not_comparable(metric, group, study, published)
    if reasons := [*reasons, *beyond(published.value, bound)]:
        return Verdict(NOT_COMPARABLE, tuple(reasons))
    caveats = _caveats(metric, group, study, published)
    if series.too_few:
        ends = f" ({series.min:.4g} to {series.max:.4g})" if series.values else ""
        return Verdict(UNDECIDED, (series.too_few + ends, *caveats))
    if metric.kind == "ratio":
        return Verdict(lies(published.value, series), tuple(caveats))
    return _near(metric, series, published.value, study["tolerance"], caveats)


def _near(
    metric: Metric, series: Series, published: float, tolerance: Mapping, caveats: list[str]
) -> Verdict:
    """Whether the interval lies within the tolerance around the published value, or outside."""
    if metric.is_score:
        margin = series.margin(tolerance["accuracy"])[1]
    else:
        margin = tolerance["relative"] * abs(published)
    interval, ends = series.interval(), (published - margin, published + margin)
    word, says = sequential.within(interval, ends), []
    if word == SAME:
        word = REPRODUCED
    elif word == DIFFERENT:
        better = (interval.mean > published) == metric.higher_is_better
        word = SUSPICIOUS if better else NOT_REPRODUCED
    else:
        says = [series.outlook(ends)]
    differs = f"differs by {interval.mean - published:+.2g} (tolerance {margin:.2g})"
    return Verdict(word, (differs, *says, *caveats))


def lies(published: float, found: Series) -> str:
    """Where a published ratio or difference lies, beside the interval of what was found."""
    if published > found.ci_high:
        return ABOVE
    return BELOW if published < found.ci_low else INSIDE


def beyond(published: float, most: float, least: float = 0.0) -> list[str]:
    """Why a published ratio cannot be shown here; empty where it can."""
    said = f"published {published:.3g}, beyond what can be reached here: "
    if published > most:
        return [f"{said}at most {most:.2f}"]
    return [f"{said}at least {least:.2f}"] if published < least else []


def _why_not_measured(metric: Metric, group: Group, series: Series) -> str:
    """Why a run that ended well has no value that it might have had; empty where that is not so."""
    if metric.is_score:
        return few_steps(group.training.steps)
    if is_operator(metric.name) and group.ok and not series.values:
        return "not among the operators that took the time here"
    if metric.kind == "ratio" and group.baseline not in group.pairs:
        return NO_PAIR
    return ""


def _why_not_comparable(
    metric: Metric, group: Group, study: Mapping, published: Published
) -> list[str]:
    """Reasons that forbid setting the metric beside its published value; empty when none does."""
    reasons = group.cautions(metric)
    if group.differs:
        reasons.append(f"differs from the source: {group.differs}")
    if metric.kind == "ratio":
        if not has_layout(published, group):
            reasons += _hardware_difference(group, published)
        return reasons
    reasons += scale_difference(group, study)
    if metric.kind == "absolute":
        reasons += _assumptions(study) + _hardware_difference(group, published)
    return reasons


def _caveats(metric: Metric, group: Group, study: Mapping, published: Published) -> list[str]:
    """What differs from the source without forbidding the comparison."""
    caveats = _assumptions(study)
    if metric.kind == "ratio":
        caveats = _hardware_difference(group, published) + scale_difference(group, study) + caveats
    return caveats


def scale_difference(group: Group, study: Mapping) -> list[str]:
    """In what the group differs from published scale, and from the source's dataset."""
    changed = group.scaled or [
        f"{key} {value} by config.yaml"
        for key, value in (study.get("override") or {}).get("settings", {}).items()
    ]
    reasons = [f"scaled: {', '.join(changed)}"] if changed else []
    source = study.get("source_dataset") or study["dataset"]
    if group.dataset.name != source:
        reasons.append(f"published on the dataset {source}, here on {group.dataset.name}")
    return reasons


def _assumptions(study: Mapping) -> list[str]:
    assumed = study["assumed"]
    return [f"not stated by the source, assumed: {', '.join(assumed)}"] if assumed else []


def _hardware_difference(group: Group, published: Published) -> list[str]:
    if has_hardware(published, group):
        return []
    return [f"published on {described_hardware(published)}, here on {group.describe_hardware()}"]
