"""Judge what sources claim in words, by the cells at hand (docs/verdicts.md).

A claim's test divides a metric of one selection of groups by that of another. Each pair of groups
that differ only in what the test names is a comparison with a verdict of its own; the claim's
verdict follows from these.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from parbench.measure.metrics import METRICS, Metric
from parbench.plan.published import Claim, ClaimTest
from parbench.verdicts import sequential, words
from parbench.verdicts.arithmetic import Contradiction, Sure
from parbench.verdicts.comparisons import Comparison, Rebuilt, of_two_groups, untested
from parbench.verdicts.selection import measuring
from parbench.verdicts.series import Series

EXACT = 1e-6  # relative difference up to which two numbers are equal


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict, the reason in a sentence, and the comparisons it rests on."""

    name: str
    claim: Claim
    verdict: str
    reason: str
    comparisons: tuple[Comparison, ...]
    firm: bool = False  # also decided at ALPHA over the number of claims judged


def judge(
    claims: Mapping[str, Claim],
    studies: Collection[Rebuilt],
    found: Collection[Contradiction],
) -> list[Judged]:
    """Judge every claim that ``studies`` test; ``found``: the audit's findings on their sources."""
    judged = []
    for name, claim in claims.items():
        testing = [
            study for study in studies if study.source.name == claim.study or name in study.claims
        ]
        if not testing:
            continue
        comparisons = (
            [comparison for study in testing for comparison in _comparisons(claim, study)]
            if claim.test
            else []
        )
        verdict, reason = _whole(comparisons) if claim.test else _by_audit(claim, found)
        judged.append(Judged(name, claim, verdict, reason, tuple(comparisons)))
    return [replace(each, firm=_is_firm(each, len(judged))) for each in judged]


def _comparisons(claim: Claim, study: Rebuilt) -> list[Comparison]:
    """Return a claim's comparisons in one study, at least one."""
    test = claim.test
    if test.op == "largest":
        return _largest(test.metric, study)
    return _equal(test, study) if test.op == "equal" else of_two_groups(claim, study)


# ---------------------------------------------------------------- of each group alone


def _largest(metric: str, study: Rebuilt) -> list[Comparison]:
    """Return the largest part of a metric in each group, as measured and as published."""
    printed = {row.metric for row in study.source.rows if row.metric.startswith(f"{metric}:")}
    comparisons = []
    for group in study.groups:
        means = {
            name: mean for (group_id, name), mean in study.means.items() if group_id == group.id
        }
        measured_parts = {
            name: mean for name, mean in means.items() if name.startswith(f"{metric}:")
        }
        printed_parts = {
            name: published.value
            for name in sorted(printed)
            if (published := study.source.find(group, Metric(name, name, "s", "absolute")))
        }
        reason = group.not_run or (f"no cell measures {metric}" if group.runs else words.NO_VALUES)
        verdict, reasons = (words.REPORTED, ()) if measured_parts else (words.UNTESTED, (reason,))
        # A part is named <metric>:<part>.
        published, measured = (
            max(by_part, key=by_part.get).partition(":")[2] if by_part else None
            for by_part in (printed_parts, measured_parts)
        )
        if printed_parts or measured_parts:
            fields = {"group": group, "published": published, "measured": measured}
            comparisons.append(Comparison(study.name, verdict, reasons, **fields))
    return comparisons or [untested(study, f"no cell of {study.name} measures {metric}")]


def _equal(test: ClaimTest, study: Rebuilt) -> list[Comparison]:
    """Test in each group that the source has, too, whether two metrics are equal in every run."""
    for name in (test.metric, test.against):
        if name not in METRICS or METRICS[name].read is None:
            return [untested(study, f"no cell measures {name}")]
    metric, against = METRICS[test.metric], METRICS[test.against]
    comparisons = []
    for group in measuring(study.groups, test.metric):
        printed = [study.source.find(group, each) for each in (metric, against)]
        if None in printed or not printed[1].value:
            continue
        ratios = [metric.read(run) / value for run in group.ok if (value := against.read(run))]
        measured, reasons = Series(dict(enumerate(ratios))) if ratios else None, ()
        if ratios:
            exact = all(math.isclose(ratio, 1, rel_tol=EXACT) for ratio in ratios)
            verdict = words.HOLDS if exact else words.FAILS
        else:
            reason = "; ".join(group.failures()) or ("no score" if group.runs else words.NO_VALUES)
            verdict, reasons = words.UNTESTED, (group.not_run or reason,)
        published = printed[0].value / printed[1].value
        fields = {"group": group, "published": published, "measured": measured}
        comparisons.append(Comparison(study.name, verdict, reasons, **fields))
    return comparisons or [untested(study, f"no cell of {study.name} has a score")]


# ---------------------------------------------------------------- verdicts


def _is_firm(judged: Judged, claims: int) -> bool:
    """Return whether a claim is also decided at ALPHA over the number of ``claims`` in a report."""
    tested = [each.at for each in judged.comparisons if each.verdict != words.UNTESTED]
    if not tested or None in tested:
        return False
    return sequential.of_claim(tested, sequential.ALPHA / claims) != words.UNDECIDED


def _whole(comparisons: Collection[Comparison]) -> tuple[str, str]:
    """Return a claim's verdict, and a sentence that counts its comparisons by verdict."""
    counts = Counter(each.verdict for each in comparisons)
    tested = [each for each in comparisons if each.verdict != words.UNTESTED]
    if not tested:
        missing = {reason for each in comparisons for reason in each.reasons}
        return words.UNTESTED, "; ".join(sorted(missing))
    tally = ", ".join(f"{name} {counts[name]}" for name in words.CLAIM_VERDICTS if counts[name])
    studies = dict.fromkeys(each.study + " (scaled)" * each.scaled for each in tested)
    gravest = (words.FAILS, words.UNDECIDED, words.HOLDS, words.REPORTED)
    verdict = next(word for word in gravest if counts[word])
    if verdict == words.FAILS:  # of many comparisons, one may fail by chance
        verdict = sequential.of_claim([each.verdict_at for each in tested])
    outlooks = {each.reasons[-1] for each in tested if each.at and each.verdict == words.UNDECIDED}
    return verdict, "; ".join([f"comparisons: {tally}; on {', '.join(studies)}", *sorted(outlooks)])


def _by_audit(claim: Claim, found: Collection[Contradiction]) -> tuple[str, str]:
    """Return verdict and reason of a claim without test, which only the audit can contradict."""
    sound = [finding for finding in found if finding.sure is not Sure.WEAK]
    if any((finding.study, finding.check) == (claim.study, claim.finding) for finding in sound):
        return words.FAILS, f"by the published numbers alone ({claim.finding})"
    return words.UNTESTED, "no cell measures what it is about"
