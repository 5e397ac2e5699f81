"""The first page's sentence on claims: verdicts, coverage, and why some were not tested."""

from __future__ import annotations

from collections import Counter

from parbench.reporting.text import listed
from parbench.verdicts import terms
from parbench.verdicts.claims import NOT_DECIDED, Judged
from parbench.words import count


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
    text += _untested([each for each in judged if each.verdict == terms.NOT_TESTED])
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


def _untested(judged: list[Judged]) -> str:
    """Return how many claims were not tested, and why; of a claim with several reasons, how many
    of its parts have which."""
    if not judged:
        return ""
    simple, mixed = Counter[str](), Counter[str]()
    for each in judged:
        reasons = _obstacles(each)
        if len(reasons) == 1:
            simple.update(list(reasons))
        else:
            mixed.update(reasons)
    text = f" {len(judged)} {'was' if len(judged) == 1 else 'were'} not tested here"
    several = len(judged) - simple.total()
    said = listed([_said_of_parts(why, number) for why, number in mixed.most_common()])
    of_parts = f"(of {'its' if several == 1 else 'their'} parts, {said})"
    if not simple:
        return f"{text} {of_parts}."
    counted = "; ".join(f"{why} ({number})" for why, number in simple.most_common())
    return f"{text}: {counted}{f'; {several} for several reasons {of_parts}' * bool(mixed)}."


def _said_of_parts(obstacle: str, number: int) -> str:
    """Return what keeps so many parts from being measured: ``1 has no cells``."""
    one = number == 1
    has, needs = ("has", "needs") if one else ("have", "need")
    if obstacle in (terms.NO_CELLS, terms.NO_PAIR):
        return f"{number} {has} {obstacle}"
    if obstacle.startswith("needs "):
        return f"{number} {needs} {obstacle.removeprefix('needs ')}"
    if obstacle.startswith(terms.FAILED_HERE):
        return f"{number} {obstacle}"
    return f"{number} {'is' if one else 'are'} {obstacle}"


def _firm(decided: list[Judged]) -> str:
    """Return how many verdicts on ``decided`` claims, which hold or do not, are firm, and why the
    others are not."""
    total, weak = len(decided), [each for each in decided if not each.firm]
    firm = total - len(weak)
    found = Counter(why for each in weak for why in each.weaknesses)
    of_one = listed([_weak(1, why) for why in found])
    of_many = listed(
        [f"{_all_or(number, total)} {_weak(number, why)}" for why, number in found.items()]
    )
    if total == 1:
        told = f"not firm: it {of_one}" if weak else "firm"
        return f"The one verdict that a claim holds or does not is {told}"
    counts = f"{firm or 'none'} {'is' if firm < 2 else 'are'} firm"
    text = f"Of the {total} verdicts that a claim holds or does not, {counts}"
    if not weak:
        return text
    if not firm:
        return f"{text}: {of_many}"
    return f"{text}. The other {of_one}" if len(weak) == 1 else f"{text}. Of the others, {of_many}"


def _all_or(number: int, total: int) -> str:
    """Return ``all 4``, ``both``, or the number if it is not the total."""
    return f"{number}" if number != total else "both" if total == 2 else f"all {total}"


def _weak(number: int, weakness: str) -> str:
    """Return what so many verdicts with a weakness (claims.py) do: ``come from a scaled copy``."""
    s = "s" if number == 1 else ""
    if weakness.startswith("from "):
        return f"come{s} {weakness}"
    if weakness.startswith("based "):
        return f"rest{s} {weakness.removeprefix('based ')}"
    if weakness.startswith("no "):
        return f"{'has' if number == 1 else 'have'} {weakness}"
    return f"{'is' if number == 1 else 'are'} {weakness}"


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


def _obstacles(each: Judged) -> Counter[str]:
    """Return, in a few words each, why the parts of a claim were not tested on this machine, with
    the number of parts; of a claim without parts, its reason."""
    parts = [part for part in each.parts if not part.against_source]
    found = Counter(part.obstacle for part in parts if part.obstacle)
    return found or Counter([each.reason])


def why_untested(each: Judged) -> str:
    """Return in full why a claim was not tested on this machine."""
    found = [r.removeprefix(f"{c.study} has ") for c in each.comparisons for r in c.reasons]
    return "; ".join(dict.fromkeys(found)) or each.reason
