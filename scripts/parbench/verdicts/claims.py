"""What sources claim in words, each with a verdict from the cells at hand (docs/verdicts.md).

A claim's test divides a metric of one selection of groups by that of another. Each pair of groups
that differ in nothing but what the test names is a comparison with a verdict of its own; the
claim's follows from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from parbench.plan.published import Claim
from parbench.verdicts import one_group, sequential
from parbench.verdicts.arithmetic import Contradiction, Sure
from parbench.verdicts.comparisons import Comparison, Rebuilt, of_two_groups
from parbench.verdicts.words import CLAIM_VERDICTS, FAILS, HOLDS, REPORTED, UNDECIDED, UNTESTED


@dataclass(frozen=True)
class Judged:
    """The claim ``name`` with its verdict, what it follows from, and why in one sentence."""

    name: str
    claim: Claim
    verdict: str
    reason: str
    comparisons: tuple[Comparison, ...]
    firm: bool = False  # it passes also as one of all claims that are judged


def judge(
    claims: Mapping[str, Claim],
    studies: Collection[Rebuilt],
    found: Collection[Contradiction],
) -> list[Judged]:
    """Every claim that ``studies`` are asked; ``found`` by the audit of their sources."""
    judged = []
    for name, claim in claims.items():
        mine = [each for each in studies if each.is_asked(name, claim)]
        if not mine:
            continue
        made = [each for one in mine for each in _comparisons(claim, one)] if claim.test else []
        verdict, reason = _whole(made) if claim.test else _by_audit(claim, found)
        judged.append(Judged(name, claim, verdict, reason, tuple(made)))
    return [replace(each, firm=_is_firm(each, len(judged))) for each in judged]


def _comparisons(claim: Claim, study: Rebuilt) -> list[Comparison]:
    """All of a claim's comparisons in one study; never none."""
    test = claim.test
    if test.op == "largest":
        return one_group.largest(test.metric, study)
    return one_group.equal(test, study) if test.op == "equal" else of_two_groups(claim, study)


def _is_firm(judged: Judged, claims: int) -> bool:
    """Whether a claim's verdict also passes at ALPHA over the number of ``claims`` in a report."""
    tested = [each.at for each in judged.comparisons if each.verdict != UNTESTED]
    if not tested or None in tested:
        return False
    return sequential.of_claim(tested, sequential.ALPHA / claims) != UNDECIDED


def _whole(comparisons: Collection[Comparison]) -> tuple[str, str]:
    """The verdict of a claim, and how many of its comparisons say what."""
    counts = Counter(each.verdict for each in comparisons)
    tested = [verdict for verdict in (FAILS, UNDECIDED, HOLDS, REPORTED) if counts[verdict]]
    if not tested:
        missing = {reason for each in comparisons for reason in each.reasons}
        return UNTESTED, "; ".join(sorted(missing))
    told = ", ".join(f"{name} {counts[name]}" for name in CLAIM_VERDICTS if counts[name])
    made = [each for each in comparisons if each.verdict != UNTESTED]
    places = dict.fromkeys(each.place for each in made)
    verdict = tested[0]
    if verdict == FAILS:  # many comparisons refute no true claim by chance
        verdict = sequential.of_claim([each.verdict_at for each in made])
    outlooks = {each.reasons[-1] for each in made if each.at and each.verdict == UNDECIDED}
    return verdict, "; ".join([f"comparisons: {told}; on {', '.join(places)}", *sorted(outlooks)])


def _by_audit(claim: Claim, found: Collection[Contradiction]) -> tuple[str, str]:
    """The verdict of a claim without test: published numbers alone may contradict it."""
    sound = [each for each in found if each.sure is not Sure.WEAK]
    if any((each.study, each.check) == (claim.study, claim.finding) for each in sound):
        return FAILS, f"by the published numbers alone ({claim.finding})"
    return UNTESTED, "no cell measures what it is about"
