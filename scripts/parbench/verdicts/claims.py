"""What sources claim in words, each with a verdict from the cells at hand (docs/verdicts.md).

A claim's test divides a metric of one selection of groups by that of another, seed by seed. Each
pair of groups that differ in nothing but what the test names is a comparison with a verdict of its
own; the claim's follows from them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from parbench.measure.metrics import METRICS, Metric
from parbench.plan.published import Claim, ClaimTest
from parbench.verdicts import paired, sequential
from parbench.verdicts.arithmetic import Contradiction, Sure
from parbench.verdicts.equal_sides import biased
from parbench.verdicts.estimates import Estimate, estimate
from parbench.verdicts.groups import Group
from parbench.verdicts.pairs import Compared, estimated
from parbench.verdicts.published import Source
from parbench.verdicts.selection import across_models, lacks, means, measuring, pairs
from parbench.verdicts.words import (
    CLAIM_VERDICTS,
    DIFFERENT,
    FAILS,
    HOLDS,
    REPORTED,
    SAME,
    UNDECIDED,
    UNTESTED,
    too_few,
)

EVEN = (1.0, 1.0)  # no noise but what the interval holds
TIMES = ("train_seconds", "total_seconds")  # what pairs tell
EXACT = 1e-6  # how near two numbers are that are one
Band = tuple[float, float]


@dataclass(frozen=True)
class Rebuilt:
    """A study of the report, asked the claims of its source and ``claims``, by name, of others.

    ``means`` of its table by (group, metric): for metrics that are a name and a part of it.
    """

    name: str
    tolerance: Mapping[str, float]
    source: Source
    groups: tuple[Group, ...]
    means: Mapping[tuple[str, str], float]
    claims: Collection[str] = ()

    def is_asked(self, name: str, claim: Claim) -> bool:
        """Whether the claim, under its ``name``, is one for this study."""
        return claim.study == self.source.name or name in self.claims


@dataclass(frozen=True)
class Ratio:
    """A metric of the group ``over`` divided by that of ``under``.

    ``by_seed``: the ratios, of a ``pair`` by restart; ``missing``: why there are none, or
    none that mean it; ``reasons``: why seeds are missing; ``band``: in which a ratio of 1 lies by
    chance, None where that is unknown; ``stated``: what the claim says it is; ``published``: that,
    or the ratio of the source's own numbers; ``bound``: what the
    ratio may at most be.
    """

    over: Group
    under: Group
    by_seed: Mapping[int, float]
    band: Band | None
    missing: tuple[str, ...]
    reasons: tuple[str, ...]
    stated: float | None
    published: float | None
    pair: Compared | None = None
    bound: float = math.inf

    @property
    def model(self) -> str:
        """What is trained."""
        return self.over.model

    @property
    def place(self) -> tuple:
        """What tells it from others of its model."""
        return tuple((side.batch, *means(side)) for side in (self.over, self.under))


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim and its verdict.

    ``ratios``: one, or two of different models, of which the first is divided by the second; none
    where no two groups could be set beside each other. ``group``: of what is told of one group
    alone. ``published`` and ``measured`` are numbers, or a word.
    """

    study: str
    verdict: str
    reasons: tuple[str, ...]
    ratios: tuple[Ratio, ...] = ()
    group: Group | None = None
    published: float | str | None = None
    measured: Estimate | str | None = None
    band: Band | None = None
    # Of pairs: the verdict at another alpha, and the log ratios between one verdict and the next.
    at: Callable[[float], str] | None = None
    boundaries: tuple[float, ...] = ()

    @property
    def scaled(self) -> list[str]:
        """In what its groups differ from published scale."""
        groups = [ratio.over for ratio in self.ratios] if self.group is None else [self.group]
        return list(dict.fromkeys(words for group in groups for words in group.scaled))

    def verdict_at(self, alpha: float) -> str:
        """Say the verdict at ``alpha``; by seeds there is one alone."""
        return self.at(alpha) if self.at else self.verdict

    @property
    def place(self) -> str:
        """The study, and whether it is scaled."""
        return f"{self.study} (scaled)" if self.scaled else self.study


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


def _is_firm(judged: Judged, claims: int) -> bool:
    tested = [each.at for each in judged.comparisons if each.verdict != UNTESTED]
    return bool(tested) and None not in tested and sequential.is_firm(tested, claims)


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


# ---------------------------------------------------------------- what is compared with what


def _comparisons(claim: Claim, study: Rebuilt) -> list[Comparison]:
    """All of a claim's comparisons in one study; never none."""
    test = claim.test
    if test.op == "largest":
        return _largest(test.metric, study)
    if test.op == "equal":
        return _equal(test, study)
    groups = measuring(study.groups, test.metric)
    found = list(pairs(test, groups))
    if test.metric in TIMES and any(group.pairs for group in study.groups):
        # A study that compares times in turns compares no others.
        found = [(a, b) for a, b in found if b.id in a.pairs or a.id in b.pairs]
        if not found:
            return [_untested(study, f"{study.name} has no pair (`pairs`) of what it compares")]
    ratios = [_ratio(claim, study, *pair) for pair in found]
    made = [_compared(test, study, each) for each in across_models(test, ratios)]
    return made or [_untested(study, f"{study.name} has {lacks(test, groups)}")]


def _untested(study: Rebuilt, why: str) -> Comparison:
    return Comparison(study.name, UNTESTED, (why,))


def _ratio(claim: Claim, study: Rebuilt, over: Group, under: Group) -> Ratio:
    test = claim.test
    metric = METRICS.get(test.metric)
    stated = _stated(claim, over, under)
    missing = [group.not_run for group in (over, under) if group.not_run]
    by_seed, reasons, band, compared = {}, [], None, None
    if not missing and (metric is None or metric.read is None):
        missing = [f"no cell measures {test.metric}"]
    elif not missing:
        missing = _cautions(metric, over, under)
        compared, power = _in_turns(metric, over, under)
    if compared:
        by_seed = {n: math.exp(power * value) for n, value in compared.values.items()}
        reasons = compared.reasons
    elif not missing:
        but = {"global_batch"} if test.numerator.batch_size else set()
        by_seed, reasons = paired.ratios(metric, over, under, but)
        reasons = [*over.failures(), *under.failures(), *reasons]
        band = _band(metric, test.op, over, under, study.tolerance)
    if not missing and not by_seed:
        missing = reasons or ["no seed that both have"]
    return Ratio(
        over,
        under,
        by_seed,
        band,
        tuple(dict.fromkeys(missing)),
        tuple(dict.fromkeys(reasons)),
        stated,
        stated or (_printed(metric, over, under, study.source) if metric else None),
        compared,
        _bound(compared, over, under) if compared else math.inf,
    )


def _in_turns(metric: Metric, over: Group, under: Group) -> tuple[Compared | None, int]:
    """The pairs of the two, and by which power their ratio, the baseline's time over the variant's,
    is that of the first group's time over the second's; None where they took no turns."""
    if metric.name not in TIMES:
        return None, 1
    if compared := over.pairs.get(under.id):
        return compared, -1
    return under.pairs.get(over.id), 1


def _bound(compared: Compared, over: Group, under: Group) -> float:
    """How many times faster the second group can at most be that has more devices than the first:
    by their number, by its pipeline or, of models side by side, by the longest of them."""
    more, few = (each.devices * each.hardware.threads for each in (under, over))
    if more <= few or under.hardware.device != over.hardware.device:
        return math.inf
    bounds = [more / few, under.work.pipeline_bound, compared.bound if under.members else None]
    return min(each for each in bounds if each is not None)


def _cautions(metric: Metric, over: Group, under: Group) -> list[str]:
    """Why the ratio of two groups does not mean what it says, and what it would take."""
    metrics = [metric]
    if metric.depends_on_clock and means(over) != means(under):
        metrics.append(METRICS["speedup"])
    cautions = []
    for group in (over, under):
        on_cpu = group.hardware.device == "cpu"
        for caution in (each for metric in metrics for each in group.cautions(metric)):
            lacking = on_cpu and caution in group.comparable.values()
            needs = f"needs {group.hardware.devices}x GPU: " if lacking else ""
            cautions.append(f"{needs}{caution}")
    return cautions


def _band(
    metric: Metric, op: str, over: Group, under: Group, tolerance: Mapping[str, float]
) -> Band | None:
    """In what range a ratio of 1 lies by chance, or counts as one; None where nobody knows."""
    if metric.depends_on_clock:
        baseline = over if under.baseline == over.id else under
        floor, _ = paired.group_noise_floor(baseline)
        return (floor.ci_low, floor.ci_high) if floor.n >= 2 else None
    if op != "within_noise":
        return EVEN  # the interval holds all of the noise
    share = tolerance["relative"]
    if metric.kind == "accuracy":
        # Without the values of 0, of which there is no ratio.
        share = tolerance["accuracy"] / estimate(filter(None, under.values(metric))).mean
    return 1 - share, 1 + share


def _stated(claim: Claim, over: Group, under: Group) -> float | None:
    """The ratio that the claim states: of all, of a model, of a batch, or of a strategy."""
    stated = claim.published
    for key in (over.model, str(over.batch), under.strategy):
        if isinstance(stated, Mapping):
            stated = stated.get(key, stated)
    return None if isinstance(stated, Mapping) else stated


def _printed(metric: Metric, over: Group, under: Group, source: Source) -> float | None:
    """The ratio of the source's own two numbers, where both are of the same hardware."""
    ours, theirs = (source.find(group, metric) for group in (over, under))
    if ours is None or theirs is None or ours.hardware != theirs.hardware or not theirs.value:
        return None
    return ours.value / theirs.value


# ---------------------------------------------------------------- verdicts


def _compared(test: ClaimTest, study: Rebuilt, ratios: tuple[Ratio, ...]) -> Comparison:
    """The verdict on one ratio, or on the first of two over the second."""
    missing = tuple(dict.fromkeys(reason for ratio in ratios for reason in ratio.missing))
    printed = [ratio.published for ratio in ratios]
    published = None if None in printed else printed[0] / math.prod(printed[1:])
    seeds = set.intersection(*(set(ratio.by_seed) for ratio in ratios))
    value = ratios[0].stated if test.value == "published" else test.value
    if not missing and not seeds:
        missing = ("no seed that all of them have",)
    elif not missing and test.value == "published" and value is None:
        missing = ("the claim states no number for this",)
    if missing:
        return Comparison(study.name, UNTESTED, missing, ratios, published=published)
    found = estimate(
        ratios[0].by_seed[seed] / math.prod(other.by_seed[seed] for other in ratios[1:])
        for seed in sorted(seeds)
    )
    if all(ratio.pair for ratio in ratios):
        return _compared_in_turns(test, study, ratios, value, published)
    band = _joined([ratio.band for ratio in ratios])
    verdict, why = decide(test.op, 1.0 if value is None else value, found, band)
    reasons = dict.fromkeys([*why, *(reason for ratio in ratios for reason in ratio.reasons)])
    return Comparison(
        study.name,
        verdict,
        tuple(reasons),
        ratios,
        published=published,
        measured=found,
        band=band,
    )


def _compared_in_turns(
    test: ClaimTest,
    study: Rebuilt,
    ratios: tuple[Ratio, ...],
    value: float | None,
    published: float | None,
) -> Comparison:
    """The verdict on what was measured in pairs: by the one interval of sequential.py."""
    restarts = set.intersection(*(set(ratio.by_seed) for ratio in ratios))
    values = {
        n: math.log(ratios[0].by_seed[n]) - sum(math.log(each.by_seed[n]) for each in ratios[1:])
        for n in sorted(restarts)
    }
    measured, found = estimated(values)
    margin = sequential.ratio_margin(study.tolerance["relative"])
    threshold = math.log(1.0 if value is None else value)
    ends = margin if test.op == "within_noise" else (threshold,)
    reasons = [reason for ratio in ratios for reason in ratio.reasons]

    def at(alpha: float) -> str:
        if test.op == "report":
            return REPORTED
        again = sequential.interval(values.values(), alpha)
        if test.op == "within_noise":
            return {SAME: HOLDS, DIFFERENT: FAILS}.get(sequential.within(again, margin), UNDECIDED)
        return sequential.beyond(again, test.op, threshold)

    verdict = at(sequential.ALPHA)
    bound = ratios[0].bound
    if void := biased(study.groups, [side for each in ratios for side in (each.over, each.under)]):
        verdict, reasons = UNTESTED, [void]
    elif test.op == ">" and len(ratios) == 1 and threshold >= math.log(bound):
        verdict, reasons = UNTESTED, [f"at most {bound:.2f} times"]
    elif verdict == UNDECIDED:
        cost = max(each.pair.cost for each in ratios)
        reasons.append(measured.too_few or sequential.outlook(found, ends, cost))
    return Comparison(
        study.name,
        verdict,
        tuple(dict.fromkeys(reasons)),
        ratios,
        published=published,
        measured=measured,
        band=tuple(map(math.exp, margin)) if test.op == "within_noise" else EVEN,
        at=at,
        boundaries=ends,
    )


def _joined(bands: Collection[Band | None]) -> Band | None:
    """The noise of a product: of independent factors, squares add up on the logarithmic scale."""
    if None in bands:
        return None
    if len(bands) == 1:
        return next(iter(bands))
    low, high = (math.hypot(*(math.log(band[end]) for band in bands)) for end in (0, 1))
    return math.exp(-low), math.exp(high)


def decide(op: str, value: float, found: Estimate, band: Band | None) -> tuple[str, list[str]]:
    """The verdict on a ratio and why, by its 95 % interval and the ``band`` of noise around 1.

    ``>`` and ``<`` hold where the whole interval lies beyond ``value`` and its noise, and do not
    where it all lies on the other side; ``within_noise`` holds where it all lies in the noise, and
    does not where none of it does. Anything else is undecided.
    """
    few = too_few(found.n)
    if op == "report":
        return REPORTED, [few] if few else []
    if few:
        return UNDECIDED, [few]
    if band is None:
        return UNDECIDED, ["the noise floor is unknown"]
    floor, ceiling = (value * end for end in band)
    above, below = found.ci_low > ceiling, found.ci_high < floor
    if op == "within_noise":
        inside = floor <= found.ci_low and found.ci_high <= ceiling
        holds, fails, why = inside, above or below, "the interval is wider than the noise"
    else:
        holds, fails = (above, below) if op == ">" else (below, above)
        why = f"the interval reaches into the noise around {value:g}"
    if holds or fails:
        return (HOLDS if holds else FAILS), []
    return UNDECIDED, [why]


def _largest(metric: str, study: Rebuilt) -> list[Comparison]:
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
            missing = group.not_run or f"no cell measures {metric}"
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
    return made or [_untested(study, f"no cell of {study.name} measures {metric}")]


def _equal(test: ClaimTest, study: Rebuilt) -> list[Comparison]:
    """A metric over another that it equals, run by run, in each group that the source has, too."""
    for name in (test.metric, test.against):
        if name not in METRICS or METRICS[name].read is None:
            return [_untested(study, f"no cell measures {name}")]
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
            reasons = (group.not_run or "; ".join(group.failures()) or "no score",)
        made.append(
            Comparison(
                study.name,
                verdict,
                reasons,
                group=group,
                published=printed[0].value / printed[1].value,
                measured=estimate(ratios) if ratios else None,
                band=EVEN,
            )
        )
    return made or [_untested(study, f"no cell of {study.name} has a score")]


def _first(parts: Mapping[str, float]) -> str | None:
    """The largest of the parts, by the name after the metric's."""
    return max(parts, key=parts.get).partition(":")[2] if parts else None
