"""What a claim's test compares, each two groups with a verdict of its own (docs/verdicts.md).

Scores of two groups are compared by their difference, all else by its ratio.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from parbench.measure.metrics import METRICS, Metric
from parbench.plan.published import Claim, ClaimTest
from parbench.verdicts import judging, sequential, words
from parbench.verdicts.groups import Group, compared
from parbench.verdicts.pairs import Compared
from parbench.verdicts.published import PublishedSource
from parbench.verdicts.selection import across_models, lacks, measuring, pairs
from parbench.verdicts.series import Series

# Which of a group's pairs tell a metric.
TURNS = {"train_seconds": "pairs", "total_seconds": "pairs", "inference_seconds": "predicting"}


@dataclass(frozen=True)
class Rebuilt:
    """A study of the report, asked the claims of its source and ``claims``, by name, of others.

    ``means`` of its table by (group, metric): for metrics that are a name and a part of it.
    """

    name: str
    tolerance: Mapping[str, float]
    source: PublishedSource
    groups: tuple[Group, ...]
    means: Mapping[tuple[str, str], float]
    claims: Collection[str] = ()


@dataclass(frozen=True)
class Ratio:
    """A metric of the group ``over`` divided by that of ``under``, or of scores less it.

    ``series``: its values, None with ``missing``: why there are none, or none that mean it;
    ``pair``: where they took turns; ``stated``: what the claim says it is; ``published``: that, or
    what the source's own numbers give.
    """

    over: Group
    under: Group
    series: Series | None
    missing: tuple[str, ...]
    pair: Compared | None
    stated: float | None
    published: float | None

    @property
    def model(self) -> str:
        """What is trained."""
        return self.over.model

    @property
    def place(self) -> tuple:
        """What tells it from others of its model."""
        sides = (self.over, self.under)
        return tuple((side.batch, side.strategy, side.hardware.name) for side in sides)

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the most that a ratio of times can be: 0 and infinite without a bound."""
        if not self.pair:
            return 0.0, math.inf
        return 1 / self.over.at_most_faster(self.under), self.under.at_most_faster(self.over)


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim and its verdict.

    ``ratios``: one, or two of different models, of which the first is divided by the second; none
    where no two groups could be set beside each other. ``group``: of what is told of one group
    alone. ``published`` and ``measured`` are numbers, or a word. How the one ``lies`` beside the
    interval of the other decides nothing: INSIDE, ABOVE or BELOW of `words`, NOT_COMPARABLE, of
    which it ``says`` why, or empty.
    """

    study: str
    verdict: str
    reasons: tuple[str, ...]
    ratios: tuple[Ratio, ...] = ()
    group: Group | None = None
    published: float | str | None = None
    measured: Series | str | None = None
    lies: str = ""
    says: str = ""
    bound: float | None = None  # the most that its ratio can be here; of ``<``, the least
    # The verdict at another alpha, and the values between one verdict and the next.
    at: Callable[[float], str] | None = None
    boundaries: tuple[float, ...] = ()

    @property
    def scaled(self) -> bool:
        """Whether its groups are smaller than the source's."""
        groups = [ratio.over for ratio in self.ratios] if self.group is None else [self.group]
        return any(group.scaled for group in groups)

    @property
    def sides(self) -> list[Group]:
        """All groups that are compared."""
        return [side for each in self.ratios for side in (each.over, each.under)]

    @property
    def waits(self) -> bool:
        """Whether it lacks nothing but results."""
        return self.verdict == words.UNTESTED and self.reasons == (words.NO_VALUES,)

    def verdict_at(self, alpha: float) -> str:
        """Say the verdict at ``alpha``; of what rests on no interval there is one alone."""
        return self.at(alpha) if self.at else self.verdict


def untested(study: Rebuilt, why: str) -> Comparison:
    """Of what has no numbers here."""
    return Comparison(study.name, words.UNTESTED, (why,))


# ---------------------------------------------------------------- what is compared with what


def of_two_groups(claim: Claim, study: Rebuilt) -> list[Comparison]:
    """All of a claim's comparisons in one study; never none."""
    test = claim.test
    groups = measuring(study.groups, test.metric)
    ratios = [_ratio(claim, study, *pair) for pair in pairs(test, groups)]
    # Whoever compares times in turns means no others.
    ratios = [each for each in ratios if each.pair] or ratios
    made = [_compared(test, study, each) for each in across_models(test, ratios)]
    return made or [untested(study, f"{study.name} has {lacks(test, groups)}")]


def _ratio(claim: Claim, study: Rebuilt, over: Group, under: Group) -> Ratio:
    metric, pair, series = METRICS.get(claim.test.metric), None, None
    if metric is not None and metric.depends_on_clock:
        pair, series = _in_turns(metric, over, under)
    missing = [group.not_run for group in (over, under) if group.not_run]
    if not missing and (metric is None or metric.read is None):
        missing = [f"no cell measures {claim.test.metric}"]
    elif not missing:
        missing = _cautions(metric, over, under)
        if not metric.depends_on_clock:
            but = {"global_batch"} if claim.test.numerator.batch_size else set()
            series = compared(metric, over, under, but)
        if not missing and series is None:
            missing = [judging.NO_PAIR]
        elif not missing and not series.values:
            missing = series.reasons or [words.NO_VALUES]
    stated = _stated(claim, over, under)
    printed = _printed(metric, over, under, study.source) if metric else None
    told = tuple(dict.fromkeys(missing)), pair, stated, printed if stated is None else stated
    return Ratio(over, under, series, *told)


def _in_turns(metric: Metric, over: Group, under: Group) -> tuple[Compared | None, Series | None]:
    """The pairs of the two, whose own ratio is the baseline's time over the variant's, and that of
    the first group's time over the second's; None where they took no turns."""
    kind = TURNS.get(metric.name)
    for variant, baseline in ((over, under), (under, over)) if kind else ():
        if pair := getattr(variant, kind).get(baseline.id):
            return pair, pair.series.inverse() if variant is over else pair.series
    return None, None


def _cautions(metric: Metric, over: Group, under: Group) -> list[str]:
    """Why the ratio of two groups does not mean what it says, and what it would take."""
    metrics, hardware = [metric], over.hardware.name != under.hardware.name
    if metric.depends_on_clock and (hardware or over.strategy != under.strategy):
        metrics.append(METRICS["speedup"])
    cautions = []
    for group in (over, under):
        for caution in (each for metric in metrics for each in group.cautions(metric)):
            lacking = group.hardware.device == "cpu" and caution in group.comparable.values()
            needs = f"needs {group.hardware.devices}x GPU: " if lacking else ""
            cautions.append(f"{needs}{caution}")
    return cautions


def _stated(claim: Claim, over: Group, under: Group) -> float | None:
    """The number that the claim states: of all, of a model, of a batch, or of a strategy."""
    stated = claim.published
    for key in (over.model, str(over.batch), under.strategy):
        if isinstance(stated, Mapping):
            stated = stated.get(key, stated)
    return None if isinstance(stated, Mapping) else stated


def _printed(metric: Metric, over: Group, under: Group, source: PublishedSource) -> float | None:
    """What the source's own two numbers give, where both are of the same hardware."""
    ours, theirs = (source.find(group, metric) for group in (over, under))
    if ours is None or theirs is None or ours.hardware != theirs.hardware:
        return None
    if metric.is_score:
        return ours.value - theirs.value
    return ours.value / theirs.value if theirs.value else None


# ---------------------------------------------------------------- verdicts


def _compared(test: ClaimTest, study: Rebuilt, ratios: tuple[Ratio, ...]) -> Comparison:
    """The verdict on one ratio, or on the first of two over the second."""
    missing = tuple(dict.fromkeys(reason for ratio in ratios for reason in ratio.missing))
    first, *others = ratios
    published, series = first.published, first.series
    for each in others:
        series = series if missing else series.beside(each.series)
        if published is None or each.published is None:
            published = None
        else:
            by = operator.sub if test.is_of_differences else operator.truediv
            published = by(published, each.published)
    value = first.stated if test.value == "published" else test.value
    if not missing and not series.values:
        missing = (f"no {series.of.rstrip('s')} that all of them have",)
    elif not missing and test.value == "published" and value is None:
        missing = ("the claim states no number for this",)
    made = Comparison(study.name, words.UNTESTED, missing, ratios, published=published)
    one = series and series.logs and not others
    bound, too_far = _reach(test, first, value) if one else (None, "")
    if missing:
        return replace(made, reasons=(too_far,)) if made.waits and too_far else made
    made = replace(made, measured=series, bound=bound)
    if first.pair and (void := _biased(study.groups, made.sides)):
        return replace(made, reasons=(void,))
    made = replace(made, **_beside(made))
    return replace(made, reasons=(too_far,)) if too_far else _judged(made, test, study, value)


def _biased(groups: Iterable[Group], compared: Iterable[Group]) -> str:
    """Why pairs of ``compared`` tell nothing: equal sides on as many devices differ; else empty."""
    places = {(each.hardware.device, each.devices) for each in compared}
    for group in groups:
        equal = group.pairs.get(group.id)
        if equal and equal.biased and (group.hardware.device, group.devices) in places:
            return f"equal sides differ on {group.describe_hardware()}: {equal.equality}"
    return ""


def _reach(test: ClaimTest, ratio: Ratio, value: float | None) -> tuple[float | None, str]:
    """The most that a ratio can be here, of ``<`` the least, or None; and why none beyond ``value``
    can be found, empty where one can."""
    least, most = ratio.bounds
    bound, times = (least, 1 / least if least else math.inf) if test.op == "<" else (most, most)
    if math.isinf(times):
        return None, ""
    beyond = {"<": operator.le, ">": operator.ge}.get(test.op)
    far = beyond is not None and value is not None and beyond(value, bound)
    return bound, f"at most {times:.2f} times" if far else ""


def _judged(made: Comparison, test: ClaimTest, study: Rebuilt, value: float | None) -> Comparison:
    """``made`` with the verdict of the one rule (sequential.py)."""
    series = made.measured
    if test.op == "report":
        reasons = tuple(filter(None, (*series.reasons, series.too_few)))
        return replace(made, verdict=words.REPORTED, reasons=reasons)
    share = test.margin or study.tolerance["relative" if series.logs else "accuracy"]
    threshold = math.log(value) if series.logs and value is not None else value
    sides = {">": (threshold, math.inf), "<": (-math.inf, threshold)}
    region = sides.get(test.op) or series.margin(share)

    def at(alpha: float) -> str:
        return sequential.within(series.interval(alpha), region)

    verdict, reasons, ends = at(sequential.ALPHA), series.reasons, filter(math.isfinite, region)
    if verdict == words.UNDECIDED:
        reasons = (*reasons, series.outlook(region))
    return replace(made, verdict=verdict, reasons=reasons, at=at, boundaries=tuple(ends))


def _beside(made: Comparison) -> dict[str, str]:
    """How the published number lies beside the interval, where both are known."""
    value, series = made.published, made.measured
    if value is None or series.too_few:
        return {}
    differs = [f"differs from the source: {side.differs}" for side in made.sides if side.differs]
    if len(made.ratios) == 1 and series.logs:
        least, most = made.ratios[0].bounds
        differs += judging.beyond(value, most, least)
    if differs:
        said = f"{value:.3g}" if series.logs else f"{100 * value:+.2f} points"
        says = f"published {said}: not comparable: {'; '.join(differs)}"
        return {"lies": words.NOT_COMPARABLE, "says": says}
    return {"lies": judging.lies(value, series)}
