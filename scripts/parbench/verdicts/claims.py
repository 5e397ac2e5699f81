"""What sources claim in words, each with a verdict from the cells at hand (docs/verdicts.md).

A claim's test divides a metric of one selection of groups by that of another, seed by seed. Each
pair of groups that differ in nothing but what the test names is a comparison with a verdict of its
own; the claim's follows from them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from parbench.measure.metrics import METRICS, Metric
from parbench.plan.published import Claim, ClaimTest
from parbench.verdicts import paired
from parbench.verdicts.arithmetic import Contradiction, Sure
from parbench.verdicts.estimates import Estimate, estimate
from parbench.verdicts.groups import Group
from parbench.verdicts.published import Source
from parbench.verdicts.selection import Configuration, across_models
from parbench.verdicts.words import (
    CLAIM_VERDICTS,
    FAILS,
    HOLDS,
    REPORTED,
    UNDECIDED,
    UNTESTED,
    too_few,
)

EVEN = (1.0, 1.0)  # no noise but what the interval holds
EXACT = 1e-6  # how near two numbers are that are one
Band = tuple[float, float]


@dataclass(frozen=True)
class Rebuilt:
    """A study of the report that rebuilds a claim's source.

    ``means`` of its table by (group, metric): for metrics that are a name and a part of it.
    """

    name: str
    tolerance: Mapping[str, float]
    source: Source
    groups: tuple[Group, ...]
    means: Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class Ratio:
    """A metric of the group ``over`` divided by that of ``under``.

    ``by_seed``: the ratios; ``missing``: why there are none, or none that mean it; ``reasons``: why
    seeds are missing; ``band``: in which a ratio of 1 lies by chance, None where that is unknown;
    ``stated``: what the claim says it is; ``published``: that, or the ratio of the source's own
    numbers.
    """

    over: Group
    under: Group
    by_seed: Mapping[int, float]
    band: Band | None
    missing: tuple[str, ...]
    reasons: tuple[str, ...]
    stated: float | None
    published: float | None

    @property
    def model(self) -> str:
        """What is trained."""
        return self.over.model

    @property
    def place(self) -> tuple:
        """What tells it from others of its model."""
        return tuple((side.batch, *_means(side)) for side in (self.over, self.under))


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

    @property
    def scaled(self) -> list[str]:
        """In what its groups differ from published scale."""
        groups = [ratio.over for ratio in self.ratios] if self.group is None else [self.group]
        return list(dict.fromkeys(words for group in groups for words in group.scaled))

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


def judge(
    claims: Mapping[str, Claim],
    studies: Mapping[str, list[Rebuilt]],
    found: Collection[Contradiction],
) -> list[Judged]:
    """Every claim of the sources that ``studies`` rebuild, by source; ``found`` by their audit."""
    judged = []
    for name, claim in claims.items():
        mine = studies.get(claim.study)
        if not mine:
            continue
        made = [each for one in mine for each in _comparisons(claim, one)] if claim.test else []
        verdict, reason = _whole(made) if claim.test else _by_audit(claim, found)
        judged.append(Judged(name, claim, verdict, reason, tuple(made)))
    return judged


def _whole(comparisons: Collection[Comparison]) -> tuple[str, str]:
    """The verdict of a claim, and how many of its comparisons say what."""
    counts = Counter(each.verdict for each in comparisons)
    tested = [verdict for verdict in (FAILS, UNDECIDED, HOLDS, REPORTED) if counts[verdict]]
    if not tested:
        missing = {reason for each in comparisons for reason in each.reasons}
        return UNTESTED, "; ".join(sorted(missing))
    told = ", ".join(f"{name} {counts[name]}" for name in CLAIM_VERDICTS if counts[name])
    places = dict.fromkeys(each.place for each in comparisons if each.verdict != UNTESTED)
    return tested[0], f"comparisons: {told}; on {', '.join(places)}"


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
    groups = _measuring(study.groups, test.metric)
    ratios = [_ratio(claim, study, *pair) for pair in _pairs(test, groups)]
    made = [_compared(test, study, each) for each in across_models(test, ratios)]
    return made or [_untested(study, f"{study.name} has {_lacks(test, groups)}")]


def _untested(study: Rebuilt, why: str) -> Comparison:
    return Comparison(study.name, UNTESTED, (why,))


def _measuring(groups: Iterable[Group], name: str) -> list[Group]:
    """Those that are compared by the metric ``name``, of a model or of several together.

    What is instrumented runs slower, and apart; a few steps of an epoch have no score.
    """
    metric = METRICS.get(name)
    kept = [each for each in groups if each.training.profile == "none"]
    if metric is None:  # each of them lacks it
        return kept
    scored = metric.kind == "accuracy"
    return [
        each
        for each in kept
        if each.measures(metric) and not (scored and each.training.steps is not None)
    ]


def _lacks(test: ClaimTest, groups: Collection[Group]) -> str:
    """Why a test compares none of ``groups``, which measure its metric."""
    if not groups:
        return f"no cell that measures {test.metric}"
    for side in test.sides:
        if not any(Configuration.of_group(group).is_among(side) for group in groups):
            return f"no cell with {side}"
    return "no two cells that differ in this alone"


def _pairs(test: ClaimTest, groups: Collection[Group]) -> Iterator[tuple[Group, Group]]:
    """The pairs of groups that a test compares, models and variants in the study's order.

    Where several have the same models and batches, those count that stand for most published rows:
    the source's own configuration, and not the variants beside it. What was not run takes no other
    pair's place, and is told where it would have counted.
    """
    alike: dict[tuple, list[tuple[Group, Group]]] = {}
    overs, unders = (
        [group for group in groups if Configuration.of_group(group).is_among(side)]
        for side in test.sides
    )
    for over in overs:
        for under in unders:
            if over is not under and _alike(over, under, test):
                work = (over.model, over.batch, under.model, under.batch)
                alike.setdefault(work, []).append((over, under))
    for pairs in alike.values():
        ran = [pair for pair in pairs if not any(group.not_run for group in pair)]
        least = max(map(_published_rows, ran or pairs))
        yield from (pair for pair in pairs if _published_rows(pair) >= least)


def _published_rows(pair: Iterable[Group]) -> int:
    """How many of the two stand for rows of the source."""
    return sum(group.published is not None for group in pair)


def _alike(over: Group, under: Group, test: ClaimTest) -> bool:
    """Whether two groups agree in all that the test does not name."""
    ours, theirs = (_unnamed(group, test) for group in (over, under))
    if over.strategy != under.strategy:
        # More devices need another strategy; and one strategy's options mean nothing to another.
        if not test.named & {"strategy", "devices", "nodes"}:
            return False
        del ours["options"], theirs["options"]
    return ours == theirs


def _unnamed(group: Group, test: ClaimTest) -> dict[str, Any]:
    """What of a group, but its strategy, the test does not name."""
    hardware, training = asdict(group.hardware), asdict(group.training)
    del hardware["name"]
    del training["min_tail"]  # follows the batch
    if "batch_size" in test.named:
        del training["global_batch"]
    if "device" in test.named:
        del hardware["device"], hardware["gpu_model"], hardware["threads"]
    if test.is_of_layouts:
        del hardware["devices"], hardware["nodes"]
    options = {key: v for key, v in group.options.items() if key not in test.named_options}
    model = None if "model" in test.named else group.model
    rest = {"options": options, "dataset": group.dataset, "model": model}
    return rest | {"training": training, "hardware": hardware}


def _means(group: Group) -> tuple[str, str]:
    """By what a group trains its model."""
    return group.strategy, group.hardware.name


# ---------------------------------------------------------------- numbers


def _ratio(claim: Claim, study: Rebuilt, over: Group, under: Group) -> Ratio:
    test = claim.test
    metric = METRICS.get(test.metric)
    stated = _stated(claim, over, under)
    missing = [group.not_run for group in (over, under) if group.not_run]
    by_seed, reasons, band = {}, [], None
    if not missing and (metric is None or metric.read is None):
        missing = [f"no cell measures {test.metric}"]
    elif not missing:
        missing = _cautions(metric, over, under)
        but = {"global_batch"} if test.numerator.batch_size else set()
        by_seed, reasons = paired.ratios(metric, over, under, but)
        reasons = [*over.failures(), *under.failures(), *reasons]
        band = _band(metric, test.op, over, under, study.tolerance)
        if not by_seed:
            missing = missing or reasons or ["no seed that both have"]
    return Ratio(
        over,
        under,
        by_seed,
        band,
        tuple(dict.fromkeys(missing)),
        tuple(dict.fromkeys(reasons)),
        stated,
        stated or (_printed(metric, over, under, study.source) if metric else None),
    )


def _cautions(metric: Metric, over: Group, under: Group) -> list[str]:
    """Why the ratio of two groups does not mean what it says, and what it would take."""
    metrics = [metric]
    if metric.depends_on_clock and _means(over) != _means(under):
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
    for group in _measuring(study.groups, test.metric):
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
