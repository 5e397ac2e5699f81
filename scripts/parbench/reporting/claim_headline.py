"""The first page's sentence on claims: verdicts, coverage, and why some were not tested."""

from __future__ import annotations

from collections import Counter

from parbench.reporting.text import count, listed
from parbench.verdicts import terms
from parbench.verdicts.claims import NOT_DECIDED, Judged


def headline(judged: list[Judged], others: int = 0) -> str:
    """Return how many claims have which verdict, which share a measurement, and what is missing;
    and how many ``others`` of the same sources no study of the report tests."""
    if not judged:
        return "No claims of this report's sources are known."
    counts = Counter(each.verdict for each in judged)
    totals = [f"{n} {_verb(word, n)}" for word in terms.CLAIM_VERDICTS[:-1] if (n := counts[word])]
    names = len({each.name for each in judged})
    of = f"{len(judged)} verdicts on " if names != len(judged) else ""
    text = f"Of {of}{count(names, 'claim')}, {listed(totals) or 'none was tested here'}."
    if untested := counts[terms.NOT_TESTED]:
        found = [_obstacles(each) for each in judged if each.verdict == terms.NOT_TESTED]
        reasons = Counter(why for each in found for why in sorted(each))
        counted = "; ".join(f"{why} ({n})" for why, n in reasons.most_common())
        verb = "was" if untested == 1 else "were"
        several = _several(reasons.total(), untested)
        text += f" {untested} {verb} not tested here{several}: {counted}."
    if parts := sum(len(each.parts) for each in judged):
        measured = sum(bool(part.judged) for each in judged for part in each.parts)
        different = {each for claim in judged for each in _measurements(claim)}
        verb = "was" if measured == 1 else "were"
        whose = "its" if len(judged) == 1 else "their"
        text += f" {measured} of {whose} {count(parts, 'part')} {verb} measured"
        text += f", by {count(len(different), 'comparison')}." if different else "."
    if others:
        further = f"{count(others, 'other claim')} of the same sources"
        text += f" {further} {'is' if others == 1 else 'are'} not part of this report."
    if shared := _sharing(judged):
        text += f" Claims that rest on the same comparisons: {'; '.join(shared)}."
    if decided := [each for each in judged if each.weaknesses != (NOT_DECIDED,)]:
        text += f" {_firm(decided)}."
    scaled = {c.study for each in judged for c in each.comparisons if c.scaled}
    if scaled:
        studies = {each.study for each in judged}
        of = f"{len(scaled)} of the {len(studies)} studies with claims"
        where = of if len(studies) > 1 else "the study"
        text += f" In {where}, models, data, trainings or devices are not the source's"
        text += " (“What differs from the source” says how)."
    return text


def _firm(decided: list[Judged]) -> str:
    """Return how many verdicts on ``decided`` claims, which hold or do not, are firm, and why the
    others are not."""
    weak = [each for each in decided if not each.firm]
    firm = len(decided) - len(weak)
    of = f"Of the {len(decided)} verdicts that a claim holds or does not"
    text = f"{of}, {firm or 'none'} {'is' if firm < 2 else 'are'} firm"
    found = Counter(why for each in weak for why in each.weaknesses)
    reasons = ", ".join(f"{why} ({number})" for why, number in found.items())
    several = _several(found.total(), len(weak))
    rest = ". The others are not" if firm else ""
    return f"{text}{rest}{several}: {reasons}" if weak else text


def _several(reasons: int, number: int) -> str:
    """Return the words for so many ``reasons`` of a ``number`` of claims; empty for one each."""
    if reasons <= number:
        return ""
    return ", for several reasons" if number == 1 else ", some for several reasons"


def _sharing(judged: list[Judged]) -> list[str]:
    """Return the numbers of claims that share a comparison, by pairs or seeds, or its reciprocal,
    directly or through another claim."""
    clusters: list[tuple[set[int], set]] = []
    for number, each in enumerate(judged, 1):
        numbers, measured = {number}, set(_measurements(each))
        apart = []
        for cluster in clusters:
            if cluster[1] & measured:
                numbers |= cluster[0]
                measured |= cluster[1]
            else:
                apart.append(cluster)
        clusters = [*apart, (numbers, measured)]
    shared = sorted(sorted(numbers) for numbers, _ in clusters if len(numbers) > 1)
    return [listed(list(map(str, numbers))) for numbers in shared]


def _measurements(judged: Judged) -> frozenset:
    """Return what identifies the measurements that a claim rests on: the cells of pairs, or a
    metric and the cells of groups."""
    return frozenset(
        frozenset(cell for pair in pairs for cell in pair.cells)
        if len(pairs := [ratio.pair for ratio in c.ratios if ratio.pair]) == len(c.ratios)
        else (part.test.metric, frozenset(cell for side in c.sides for cell in side.cells))
        for part in judged.parts
        for c in part.judged
        if c.ratios
    )


def _verb(verdict: str, number: int) -> str:
    """Return the verb: ``holds`` for 1, ``hold`` for 2."""
    singular, plural = {
        terms.HOLDS: ("holds", "hold"),
        terms.HOLDS_IN_DIRECTION: ("holds in direction only", "hold in direction only"),
        terms.HOLDS_IN_PART: ("holds in part", "hold in part"),
        terms.FAILS: ("does not hold", "do not hold"),
        terms.IMPOSSIBLE: ("is impossible as stated", "are impossible as stated"),
        terms.CONTRADICTED: ("is contradicted by its source", "are contradicted by their sources"),
        terms.UNDECIDED: ("is undecided", "are undecided"),
        terms.REPORTED: ("is reported and not judged", "are reported and not judged"),
    }[verdict]
    return singular if number == 1 else plural


def _obstacles(each: Judged) -> set[str]:
    """Return, in a few words each, why the parts of a claim were not tested on this machine."""
    parts = [part for part in each.parts if not part.against_source]
    return {text for part in parts for text in part.obstacles if text} or {each.reason}


def why_untested(each: Judged) -> str:
    """Return in full why a claim was not tested on this machine."""
    found = [r.removeprefix(f"{c.study} has ") for c in each.comparisons for r in c.reasons]
    return "; ".join(dict.fromkeys(found)) or each.reason
