"""Compare the groups that a claim's test names, two by two, each with a verdict (docs/verdicts.md).

Scores are compared by their difference, everything else by the ratio.
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

# The attribute of a group that holds the pairs for a metric.
TURNS = {"train_seconds": "pairs", "total_seconds": "pairs", "inference_seconds": "predicting"}


@dataclass(frozen=True)
class Rebuilt:
    """A study of the report; it tests its source's claims and, by name, ``claims`` of others.

    ``means``: those of its table by (group id, metric), for metrics named <metric>:<part>.
    """

    name: str
    tolerance: Mapping[str, float]
    source: PublishedSource
    groups: tuple[Group, ...]
    means: Mapping[tuple[str, str], float]
    claims: Collection[str] = ()


@dataclass(frozen=True)
class Ratio:
    """A metric of the group ``over`` divided by that of ``under``; of scores, the difference.

    ``series``: its values, if any; ``missing``: why there are none, or none that are meaningful;
    ``pair``: set if the groups took turns; ``stated``: the number in the claim; ``published``: the
    same or, without it, what the source's own numbers give.
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
        """The model that is trained."""
        return self.over.model

    @property
    def place(self) -> tuple:
        """The settings that tell it from others of the same model."""
        sides = (self.over, self.under)
        return tuple((side.batch, side.strategy, side.hardware.name) for side in sides)

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and largest possible ratio of times: 0 and infinity without a bound."""
        if not self.pair:
            return 0.0, math.inf
        return 1 / self.over.at_most_faster(self.under), self.under.at_most_faster(self.over)


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim and its verdict.

    ``ratios``: one, or two of different models, the first to be divided by the second; none if no
    two groups could be compared. ``group``: set if it is about one group alone. ``published`` and
    ``measured``: numbers, or a word. ``position``: where the published number is relative to the
    measured interval, which decides nothing: INSIDE, ABOVE or BELOW (words.py), NOT_COMPARABLE for
    the reason in ``says``, or empty.
    """

    study: str
    verdict: str
    reasons: tuple[str, ...]
    ratios: tuple[Ratio, ...] = ()
    group: Group | None = None
    published: float | str | None = None
    measured: Series | str | None = None
    position: str = ""
    says: str = ""
    bound: float | None = None  # the largest possible ratio here; for ``<``, the smallest
    # The verdict as a function of alpha, and the thresholds between verdicts.
    at: Callable[[float], str] | None = None
    boundaries: tuple[float, ...] = ()

    @property
    def scaled(self) -> bool:
        """Whether its groups are smaller than the source's."""
        groups = [ratio.over for ratio in self.ratios] if self.group is None else [self.group]
        return any(group.scaled for group in groups)

    @property
    def sides(self) -> list[Group]:
        """All groups in the comparison."""
        return [side for ratio in self.ratios for side in (ratio.over, ratio.under)]

    @property
    def waits(self) -> bool:
        """Whether it is untested only because results are missing."""
        return self.verdict == words.UNTESTED and self.reasons == (words.NO_VALUES,)

    def verdict_at(self, alpha: float) -> str:
        """Return the verdict at ``alpha``; if it rests on no interval, the same for any alpha."""
        return self.at(alpha) if self.at else self.verdict


def untested(study: Rebuilt, why: str) -> Comparison:
    """Return a comparison that has no numbers, for the reason ``why``."""
    return Comparison(study.name, words.UNTESTED, (why,))


# ---------------------------------------------------------------- what is compared with what


def of_two_groups(claim: Claim, study: Rebuilt) -> list[Comparison]:
    """Return a claim's comparisons in one study, at least one."""
    test = claim.test
    groups = measuring(study.groups, test.metric)
    ratios = [_ratio(claim, study, *pair) for pair in pairs(test, groups)]
    # If any groups took turns, only these count.
    ratios = [ratio for ratio in ratios if ratio.pair] or ratios
    comparisons = [_compared(test, study, combined) for combined in across_models(test, ratios)]
    return comparisons or [untested(study, f"{study.name} has {lacks(test, groups)}")]


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
            ignored = {"global_batch"} if claim.test.numerator.batch_size else set()
            series = compared(metric, over, under, ignored)
        if not missing and series is None:
            missing = [judging.NO_PAIR]
        elif not missing and not series.values:
            missing = series.reasons or [words.NO_VALUES]
    stated = _stated(claim, over, under)
    printed = _printed(metric, over, under, study.source) if metric else None
    rest = tuple(dict.fromkeys(missing)), pair, stated, printed if stated is None else stated
    return Ratio(over, under, series, *rest)


def _in_turns(metric: Metric, over: Group, under: Group) -> tuple[Compared | None, Series | None]:
    """Return the pair of two groups and the ratio of their times, ``over`` divided by ``under``
    (the pair's own is baseline over variant); None and None if they took no turns."""
    attribute = TURNS.get(metric.name)
    for variant, baseline in ((over, under), (under, over)) if attribute else ():
        if pair := getattr(variant, attribute).get(baseline.id):
            return pair, pair.series.inverse() if variant is over else pair.series
    return None, None


def _cautions(metric: Metric, over: Group, under: Group) -> list[str]:
    """Return why the ratio of two groups is not meaningful, and what hardware it needs."""
    metrics, other_hardware = [metric], over.hardware.name != under.hardware.name
    if metric.depends_on_clock and (other_hardware or over.strategy != under.strategy):
        metrics.append(METRICS["speedup"])
    cautions = []
    for group in (over, under):
        for caution in (text for metric in metrics for text in group.cautions(metric)):
            lacks_gpu = group.hardware.device == "cpu" and caution in group.comparable.values()
            needs = f"needs {group.hardware.devices}x GPU: " if lacks_gpu else ""
            cautions.append(f"{needs}{caution}")
    return cautions


def _stated(claim: Claim, over: Group, under: Group) -> float | None:
    """Return the number that the claim states for all or this model, batch or strategy, or None."""
    stated = claim.published
    for key in (over.model, str(over.batch), under.strategy):
        if isinstance(stated, Mapping):
            stated = stated.get(key, stated)
    return None if isinstance(stated, Mapping) else stated


def _printed(metric: Metric, over: Group, under: Group, source: PublishedSource) -> float | None:
    """Return what the source's own two numbers give if they are of the same hardware, or None."""
    ours, theirs = (source.find(group, metric) for group in (over, under))
    if ours is None or theirs is None or ours.hardware != theirs.hardware:
        return None
    if metric.is_score:
        return ours.value - theirs.value
    return ours.value / theirs.value if theirs.value else None


# ---------------------------------------------------------------- verdicts


def _compared(test: ClaimTest, study: Rebuilt, ratios: tuple[Ratio, ...]) -> Comparison:
    """Judge one ratio, or the first of two divided by the second."""
    missing = tuple(dict.fromkeys(reason for ratio in ratios for reason in ratio.missing))
    first, *others = ratios
    published, series = first.published, first.series
    for other in others:
        series = series if missing else series.beside(other.series)
        if published is None or other.published is None:
            published = None
        else:
            combine = operator.sub if test.is_of_differences else operator.truediv
            published = combine(published, other.published)
    value = first.stated if test.value == "published" else test.value
    if not missing and not series.values:
        missing = (f"no {series.of.rstrip('s')} that all of them have",)
    elif not missing and test.value == "published" and value is None:
        missing = ("the claim states no number for this",)
    result = Comparison(study.name, words.UNTESTED, missing, ratios, published=published)
    is_one_ratio = series and series.logs and not others
    bound, too_far = _reach(test, first, value) if is_one_ratio else (None, "")
    if missing:
        return replace(result, reasons=(too_far,)) if result.waits and too_far else result
    result = replace(result, measured=series, bound=bound)
    if first.pair and (void := _biased(study.groups, result.sides)):
        return replace(result, reasons=(void,))
    result = replace(result, **_beside(result))
    return replace(result, reasons=(too_far,)) if too_far else _judged(result, test, study, value)


def _biased(groups: Iterable[Group], compared: Iterable[Group]) -> str:
    """Return why pairs are void, because equal sides on as many devices differ; else empty."""
    devices_compared = {(side.hardware.device, side.devices) for side in compared}
    for group in groups:
        pair = group.pairs.get(group.id)
        if pair and pair.biased and (group.hardware.device, group.devices) in devices_compared:
            return f"equal sides differ on {group.describe_hardware()}: {pair.equality}"
    return ""


def _reach(test: ClaimTest, ratio: Ratio, value: float | None) -> tuple[float | None, str]:
    """Return the largest possible ratio (for ``<`` the smallest), None without a bound; and why no
    ratio can lie beyond ``value``, empty if one can."""
    least, most = ratio.bounds
    bound, factor = (least, 1 / least if least else math.inf) if test.op == "<" else (most, most)
    if math.isinf(factor):
        return None, ""
    beyond = {"<": operator.le, ">": operator.ge}.get(test.op)
    out_of_reach = beyond is not None and value is not None and beyond(value, bound)
    return bound, f"at most {factor:.2f} times" if out_of_reach else ""


def _judged(made: Comparison, test: ClaimTest, study: Rebuilt, value: float | None) -> Comparison:
    """Return ``made`` with its verdict by the one rule (sequential.py)."""
    series = made.measured
    if test.op == "report":
        reasons = tuple(filter(None, (*series.reasons, series.too_few)))
        return replace(made, verdict=words.REPORTED, reasons=reasons)
    share = test.margin or study.tolerance["relative" if series.logs else "accuracy"]
    threshold = math.log(value) if series.logs and value is not None else value
    region_by_op = {">": (threshold, math.inf), "<": (-math.inf, threshold)}
    region = region_by_op.get(test.op) or series.margin(share)

    def at(alpha: float) -> str:
        return sequential.within(series.interval(alpha), region)

    verdict, reasons, ends = at(sequential.ALPHA), series.reasons, filter(math.isfinite, region)
    if verdict == words.UNDECIDED:
        reasons = (*reasons, series.outlook(region))
    return replace(made, verdict=verdict, reasons=reasons, at=at, boundaries=tuple(ends))


def _beside(made: Comparison) -> dict[str, str]:
    """Return the fields that relate the published number to the interval, if both are known."""
    value, series = made.published, made.measured
    if value is None or series.too_few:
        return {}
    reasons = [f"differs from the source: {side.differs}" for side in made.sides if side.differs]
    if len(made.ratios) == 1 and series.logs:
        least, most = made.ratios[0].bounds
        reasons += judging.beyond(value, most, least)
    if reasons:
        printed = f"{value:.3g}" if series.logs else f"{100 * value:+.2f} points"
        says = f"published {printed}: not comparable: {'; '.join(reasons)}"
        return {"position": words.NOT_COMPARABLE, "says": says}
    return {"position": judging.position(value, series)}
