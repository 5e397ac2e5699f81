"""The rule by which a reproduced number is set beside its published value (docs/verdicts.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from parbench.measure.metrics import Metric, is_operator
from parbench.plan.published import Published
from parbench.verdicts.estimates import Estimate, at_most
from parbench.verdicts.groups import Group
from parbench.verdicts.paired import few_steps
from parbench.verdicts.published import described_hardware, has_hardware, has_layout
from parbench.verdicts.words import (
    NO_PUBLISHED_VALUE,
    NOT_COMPARABLE,
    NOT_MEASURED,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    SUSPICIOUS,
    UNDECIDED,
    WITHIN_NOISE,
)


@dataclass(frozen=True)
class Verdict:
    """A word of `words.VERDICTS`, and why."""

    word: str
    reasons: tuple[str, ...] = ()


def verdict(
    metric: Metric, group: Group, study: Mapping, found: Estimate, published: Published | None
) -> Verdict:
    """The verdict on one number of ``group`` in ``study``, as its plan has it."""
    if group.not_run:
        return Verdict(NOT_RUN)
    if why := _why_not_measured(metric, group, found):
        return Verdict(NOT_MEASURED, (why,))
    if published is None:
        return Verdict(NO_PUBLISHED_VALUE)
    if reasons := _why_not_comparable(metric, group, study, published):
        return Verdict(NOT_COMPARABLE, tuple(reasons))
    caveats = _caveats(metric, group, study, published)
    if few := found.too_few:
        if found.n:
            few += f", range {found.min:.4g} to {found.max:.4g}"
        return Verdict(UNDECIDED, (few, *caveats))
    allowed = study["tolerance"]
    tolerance = (
        allowed["accuracy"]
        if metric.kind == "accuracy"
        else allowed["relative"] * abs(published.value)
    )
    differs = (
        f"differs by {found.mean - published.value:+.2g} "
        f"(tolerance {tolerance:.2g}, interval ±{found.half_width:.2g})"
    )
    word = judge(found, published.value, tolerance, metric.higher_is_better)
    return Verdict(word, (differs, *caveats))


def judge(found: Estimate, published: float, tolerance: float, higher_is_better: bool) -> str:
    """The verdict on a comparable mean of at least three seeds; ``tolerance`` is absolute."""
    gap = abs(found.mean - published)
    if at_most(found.half_width, tolerance) and at_most(gap, tolerance):
        return REPRODUCED
    if at_most(gap, found.half_width):
        return WITHIN_NOISE
    if (found.mean > published) == higher_is_better:
        return SUSPICIOUS
    return NOT_REPRODUCED


def _why_not_measured(metric: Metric, group: Group, found: Estimate) -> str:
    """Why a run that ended well has no value that it might have had; empty where that is not so."""
    if metric.kind == "accuracy":
        return few_steps(group.training.steps)
    if is_operator(metric.name) and group.ok and found.n == 0:
        return "not among the operators that took the time here"
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
