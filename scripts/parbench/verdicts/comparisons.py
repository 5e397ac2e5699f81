"""Compare the groups that a claim's test names, two by two, each with a verdict (docs/verdicts.md).

Scores are compared by their difference, everything else by the ratio.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from parbench.audit.arithmetic import RATIOS
from parbench.plan.published import ClaimTest, Selection
from parbench.plan.selection import Configuration, contrasted
from parbench.plan.study import Tolerance
from parbench.plan.study_plan import About
from parbench.runs.metric import Metric
from parbench.runs.metrics import METRICS
from parbench.verdicts import judging, sequential, terms
from parbench.verdicts.controls import bias_of_controls
from parbench.verdicts.groups import Group, Kind, compared, relative_epochs
from parbench.verdicts.matching import PublishedSource
from parbench.verdicts.pairs import Compared
from parbench.verdicts.sequential import Series

# The kind of pairs that measure a metric.
KIND_OF_METRIC: dict[str, Kind] = {
    "train_seconds": "training",
    "total_seconds": "training",
    "epoch_seconds": "training",
    "samples_per_second": "training",
    "joules_per_sample": "energy",
    "inference_seconds": "predicting",
    "inference_samples_per_second": "predicting",
}
# Those of them per sample or epoch, for which the number of epochs trained does not matter.
PER_SAMPLE = ("epoch_seconds", "samples_per_second", "joules_per_sample")


@dataclass(frozen=True)
class ClaimBasis:
    """What claims are judged by: a study's groups with their runs, and its source's values.

    The study tests its source's claims and, by name, ``claims`` of others. Unlike
    tables.Measured, from which the study's table is made, this does not hold the plan; it holds
    some of the table's values instead.

    ``about``: the plan's study; ``means``: the table's means of metrics named
    <metric>:<component>, by (group id, metric).
    """

    name: str
    about: About
    source: PublishedSource
    groups: tuple[Group, ...]
    means: Mapping[tuple[str, str], float]

    @property
    def tolerance(self) -> Tolerance:
        """The largest differences at which two numbers still count as equal."""
        return self.about.tolerance

    @property
    def claims(self) -> Collection[str]:
        """Names of claims of other sources."""
        return self.about.claims


@dataclass(frozen=True)
class Ratio:
    """``metric`` of the group ``over`` divided by that of ``under``; for scores, the difference.

    ``series``: its values, if any; ``unjudged``: the term (of terms.UNJUDGED) for why they decide
    nothing, empty if they decide, and ``reasons``: why; ``pair``: set if the groups took turns;
    ``published``: the same ratio of the source's own numbers.
    """

    metric: str
    over: Group
    under: Group
    series: Series | None
    unjudged: str
    reasons: tuple[str, ...]
    pair: Compared | None
    published: float | None

    @property
    def configurations(self) -> tuple[Configuration, Configuration]:
        """The configurations of both sides."""
        return self.over.configuration, self.under.configuration

    @property
    def sides_and_kind(self) -> tuple[tuple[Group, Group], Kind]:
        """Its sides, and the kind of pairs that measure its metric."""
        return (self.over, self.under), KIND_OF_METRIC[self.metric]

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and largest ratio that the devices allow, if the groups took turns and time
        is compared; otherwise, and where devices set no bound, 0 and infinity."""
        if not self.pair or KIND_OF_METRIC[self.metric] == "energy":
            return 0.0, math.inf
        by_over, by_under = (
            self.over.at_most_faster(self.under),
            self.under.at_most_faster(self.over),
        )
        is_rate = METRICS[self.metric].higher_is_better
        return (1 / by_under, by_over) if is_rate else (1 / by_over, by_under)


def always(answer: str) -> Callable[[float], str]:
    """Return a function that gives ``answer`` at every alpha, for answers without an interval."""
    return lambda alpha: answer


@dataclass(frozen=True)
class Largest:
    """The largest component of a metric, as published and as measured; None if unknown."""

    published: str | None
    measured: str | None


@dataclass(frozen=True)
class Comparison:
    """One comparison of a part of a claim, with two answers.

    ``verdict``: its direction (terms.DIRECTIONS), REPORTED, or the word for why it decides nothing;
    ``size``: how large it is against ``published`` (terms.SIZES), empty if that is not judged;
    ``reasons``: the reasons for both. ``ratios``: one, or two of which the first is divided by the
    second; none if no two groups could be compared. ``published``: a number, or the two ends of a
    range. ``group`` and ``largest``: set if it is about the largest component in one group.
    """

    study: str
    verdict: str
    reasons: tuple[str, ...]
    ratios: tuple[Ratio, ...] = ()
    group: Group | None = None
    largest: Largest | None = None
    published: tuple[float, ...] = ()
    measured: Series | None = None
    size: str = ""
    size_boundaries: tuple[float, ...] = ()  # where the size changes, if it is not told apart
    bound: float | None = None  # the largest possible ratio here; for ``<``, the smallest
    # What sequential.within says at an alpha, and the thresholds between directions.
    at: Callable[[float], str] = field(default=always(terms.UNDECIDED))
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
    def groups(self) -> list[Group]:
        """All groups in the comparison, or the only one."""
        return self.sides if self.group is None else [self.group]

    @property
    def awaits_results(self) -> bool:
        """Whether missing results are the only reason why it is not measured."""
        return self.verdict == terms.NOT_MEASURED and self.reasons == (terms.NO_VALUES,)

    @property
    def is_measured(self) -> bool:
        """Whether anything was measured, decisive or not."""
        named = self.largest is not None and self.largest.measured is not None
        return self.measured is not None or named

    @property
    def is_judged(self) -> bool:
        """Whether its direction was measured."""
        return self.verdict in terms.DIRECTIONS

    @property
    def obstacle(self) -> str:
        """Why its direction was not measured, in a few words; empty if it was, or is not judged."""
        if self.is_judged or self.verdict == terms.REPORTED:
            return ""
        if self.verdict == terms.NOT_RUN:
            return re.split(r" \(|[:;]", self.reasons[0])[0]
        if self.verdict == terms.FAILED_HERE:
            return f"{self.verdict}: {self.reasons[0]}"
        return self.verdict if self.ratios or self.group else terms.NO_CELLS


def untested(study: ClaimBasis, why: str, published: tuple[float, ...] = ()) -> Comparison:
    """Return a comparison of which nothing was measured, for the reason ``why``; ``published``: the
    size that its claim states."""
    return Comparison(study.name, terms.NOT_MEASURED, (why,), published=published)


# ---------------------------------------------------------------- what is compared with what


def measuring(
    groups: Iterable[Group],
    name: str,
    about: Selection | None = None,
    *,
    profiled: bool = False,
) -> list[Group]:
    """Return the groups, of one model or of several together, that the metric ``name`` applies to.

    Leaves out groups that ``about`` does not select; profiled groups, which run slower and
    separately, unless only they measure it; and, for scores, groups that train only a few steps of
    an epoch and therefore have none. If METRICS lacks ``name``, it applies to all other groups.
    """
    metric = METRICS.get(name)
    kept = [
        group
        for group in groups
        if (profiled or group.training.profile == "none")
        and (about is None or group.configuration.is_among(about))
    ]
    if metric is not None:
        kept = [group for group in kept if group.measures(metric)]
        if metric.is_score:
            kept = [group for group in kept if group.training.steps is None]
    return kept


def why_no_comparison(test: ClaimTest, groups: Collection[Group]) -> str:
    """Return why a test compares none of ``groups``, which measure its metric."""
    if not groups:
        return f"no cell that measures {test.metric}"
    about = f", {test.about}" if test.about else ""
    for side in test.sides:
        if not any(group.configuration.is_side(side, test) for group in groups):
            return f"no cell with {side}{about}"
    return "no two cells that differ only in this"


def groups_compared(test: ClaimTest, groups: Collection[Group]) -> Iterator[tuple[Group, Group]]:
    """Yield each two groups that a test compares, models and variants in the study's order.

    Of those with the same models and batch sizes, keep those in which most groups (both, one or
    none) have published rows: the source's own configuration, not additional variants. If that
    configuration was not run, no other is used instead.
    """
    alike = defaultdict[tuple[str, int, str, int], list[tuple[Group, Group]]](list)
    sides = (
        [group for group in groups if group.configuration.is_side(side, test)]
        for side in test.sides
    )
    for over, under in itertools.product(*sides):
        if over is not under and _alike(over, under, test):
            alike[over.model, over.batch, under.model, under.batch].append((over, under))
    for rivals in alike.values():
        row_counts = [sum(group.published is not None for group in two) for two in rivals]
        most = max(row_counts)
        yield from (two for two, count in zip(rivals, row_counts, strict=True) if count == most)


def _alike(over: Group, under: Group, test: ClaimTest) -> bool:
    """Return whether two groups agree in everything that the test does not name."""
    ours, theirs = (_unnamed(group, test) for group in (over, under))
    if over.strategy != under.strategy:
        # More devices need another strategy; and one strategy's options mean nothing to another.
        if not test.named & {"strategy", "devices", "nodes"}:
            return False
        del ours["options"], theirs["options"]
    return ours == theirs


def _unnamed(group: Group, test: ClaimTest) -> dict[str, Any]:
    """Return everything about a group, except its strategy, that the test does not name."""
    hardware, training = asdict(group.hardware), asdict(group.training)
    del hardware["name"]
    del training["min_tail"]  # follows the batch
    if "batch_size" in test.named:
        del training["global_batch"]
    for key in test.named_settings:
        del training[key]
    if test.named & {"device", "gpu"}:
        del hardware["gpu_model"]
    if "device" in test.named:
        del hardware["device"], training["tf32"]  # which CPUs do not have
    if test.named & {"device", "cores"}:
        del hardware["threads"]
    if test.may_differ_in_devices:
        del hardware["devices"], hardware["nodes"]
    options = {key: v for key, v in group.options.items() if key not in test.named_options}
    model = None if "model" in test.named else group.model
    about = {"options": options, "dataset": group.dataset, "model": model}
    return about | {"training": training, "hardware": hardware}


def of_two_groups(test: ClaimTest, study: ClaimBasis) -> list[Comparison]:
    """Return the comparisons of a part of a claim in one study, at least one."""
    groups = measuring(study.groups, test.metric)
    ratios = [_ratio(test, study, *two) for two in groups_compared(test, groups)]
    comparisons = [_compared(test, study, combined) for combined in contrasted(test, ratios)]
    why = f"{study.name} has {why_no_comparison(test, groups)}"
    return comparisons or [untested(study, why, test.sizes)]


def _ratio(test: ClaimTest, study: ClaimBasis, over: Group, under: Group) -> Ratio:
    metric, pair, series = METRICS[test.metric], None, None
    if metric.read is None:
        no_cell = (_of_two(test.metric),)
        return Ratio(test.metric, over, under, None, terms.NOT_MEASURED, no_cell, None, None)
    if metric.depends_on_clock:
        pair, series = _in_turns(metric, over, under)
    else:
        but = ("global_batch",) if "batch_size" in test.named else ()
        series = compared(metric, over, under, but)
    unjudged, reasons = _why_unjudged(metric, over, under, pair, series)
    published = _printed(metric, over, under, study.source)
    reasons = tuple(dict.fromkeys(reasons))
    return Ratio(test.metric, over, under, series, unjudged, reasons, pair, published)


def _of_two(metric: str) -> str:
    """Return why no cell measures a metric that compares two cells, and what to name instead."""
    others = [name for names in RATIOS.get(metric, ()) for name in names if name in KIND_OF_METRIC]
    others += ["test_accuracy"] if METRICS[metric].is_score else []
    of_each = f"; name what each side has, such as {', '.join(others)}" if others else ""
    return f"no cell measures {metric}{', which compares two cells' * bool(others)}{of_each}"


def _why_unjudged(
    metric: Metric, over: Group, under: Group, pair: Compared | None, series: Series | None
) -> tuple[str, list[str]]:
    """Return the word for why two groups decide nothing, and the reasons; empty if they decide."""
    sides = (over, under)
    # A pair counts even where the sides are not run as cells of their own.
    taken = pair is not None and (pair.restarts or pair.failed or not pair.reasons)
    if missing := [side.not_run for side in sides if side.not_run and not taken]:
        # What hardware is needed says more than that nothing was measured.
        return terms.NOT_RUN, sorted(missing, key=lambda why: why == terms.NOT_MEASURED)
    if cautions := _cautions(metric, over, under):
        return terms.NOT_COMPARABLE, cautions
    if differences := list(filter(None, (side.difference(metric) for side in sides))):
        return terms.NOT_COMPARABLE, [f"differs from the source: {each}" for each in differences]
    if series is None:
        return terms.NO_PAIR, [judging.NO_PAIR]
    if failed := _failures(pair, sides):
        return terms.FAILED_HERE, failed
    if not series.values:
        return terms.NOT_MEASURED, [*series.reasons] or [terms.NO_VALUES]
    return "", []


def _failures(pair: Compared | None, sides: Iterable[Group]) -> list[str]:
    """Return the failures of a pair's restarts, or else of the seeds of its ``sides``: for example
    ``out of memory in 2 of 5 restarts``."""
    if pair is not None:
        total = len(pair.restarts) + sum(pair.failed.values())
        counts = [(word, number, f"{total} restarts") for word, number in pair.failed.items()]
    else:
        counts = [
            (word, number, f"{len(side.runs)} seeds of {side.variant}")
            for side in sides
            for word, number in side.failed_runs().items()
        ]
    return [f"{word} in {number} of {of}" for word, number, of in counts]


def _in_turns(metric: Metric, over: Group, under: Group) -> tuple[Compared | None, Series | None]:
    """Return the pair of two groups and the ratio of their times or rates, ``over`` divided by
    ``under``; None and None if they took no turns."""
    kind = KIND_OF_METRIC.get(metric.name)
    for variant, baseline in ((over, under), (under, over)):
        if kind and (pair := variant.in_turns.of(kind).get(baseline.id)):
            gain = pair.series if variant is over else pair.series.inverse()
            if metric.name in PER_SAMPLE:
                gain = gain.times(relative_epochs(over, under))
            return pair, gain if metric.higher_is_better else gain.inverse()
    return None, None


def _cautions(metric: Metric, over: Group, under: Group) -> list[str]:
    """Return why the ratio of two groups is not meaningful, and what hardware it would need."""
    metrics, other_hardware = [metric], over.hardware.name != under.hardware.name
    if metric.depends_on_clock and (other_hardware or over.strategy != under.strategy):
        metrics.append(METRICS["speedup"])
    cautions: list[str] = []
    for group in (over, under):
        for caution in (text for metric in metrics for text in group.cautions(metric)):
            lacks_gpu = group.hardware.device == "cpu" and caution in group.comparable.values()
            needs = f"needs {group.hardware.devices}x GPU: " if lacks_gpu else ""
            cautions.append(f"{needs}{caution}")
    return cautions


def _printed(metric: Metric, over: Group, under: Group, source: PublishedSource) -> float | None:
    """Return the ratio of the source's own two numbers if both come from the same hardware."""
    ours, theirs = (source.find(group, metric) for group in (over, under))
    if ours is None or theirs is None or ours.hardware != theirs.hardware:
        return None
    if metric.is_score:
        return ours.value - theirs.value
    return ours.value / theirs.value if theirs.value else None


# ---------------------------------------------------------------- verdicts


def _compared(test: ClaimTest, study: ClaimBasis, ratios: tuple[Ratio, ...]) -> Comparison:
    """Judge one ratio, or the first of two divided by the second."""
    unjudged = next((ratio.unjudged for ratio in ratios if ratio.unjudged), "")
    reasons = tuple(dict.fromkeys(reason for ratio in ratios for reason in ratio.reasons))
    first, *others = ratios
    published, series = first.published, first.series
    for other in others:
        if series is not None and other.series is not None and not unjudged:
            series = series.beside(other.series)
        if published is None or other.published is None:
            published = None
        elif test.is_of_differences:
            published -= other.published
        else:
            published /= other.published
    if published is not None and not test.sizes:
        none = 0.0 if test.is_of_differences else 1.0
        denied = {">": published <= none, "<": published >= none}.get(test.op, False)
        published = None if denied else published  # the source's words say something else
    sizes = test.sizes or (() if published is None else (published,))
    if not unjudged and series is not None and not series.values:
        unjudged = terms.NOT_MEASURED
        reasons = (f"no {series.of.rstrip('s')} that all of them have",)
    result = Comparison(study.name, unjudged, reasons, ratios, published=sizes)
    if unjudged or series is None:
        # What was measured is shown, though it decides nothing.
        shown = series if series is not None and series.values and not others else None
        return replace(result, measured=shown)
    result = replace(result, measured=series, bound=_bound(test, ratios))
    if first.pair and (reason := bias_of_controls(study.groups, *first.sides_and_kind)):
        return replace(result, verdict=terms.NOT_COMPARABLE, reasons=(reason,))
    return _sized(_directed(result, series, test, study), series, study)


def _bound(test: ClaimTest, ratios: tuple[Ratio, ...]) -> float | None:
    """Return the largest possible ratio here (the smallest for ``<``); None if unbounded."""
    ratio, *others = ratios
    if others:
        return None
    least, most = ratio.bounds
    bound = least if test.op == "<" else most
    return None if bound in (0.0, math.inf) else bound


def _directed(made: Comparison, series: Series, test: ClaimTest, study: ClaimBasis) -> Comparison:
    """Return ``made`` with the direction of its ``series`` by the one rule (sequential.py)."""
    if test.op == "report":
        reasons = tuple(filter(None, (*series.reasons, series.too_few)))
        return replace(made, verdict=terms.REPORTED, reasons=reasons)
    margin = series.margin(test.margin or study.tolerance.share(series.logs))
    region = {">": (0.0, math.inf), "<": (-math.inf, 0.0)}.get(test.op, margin)

    def at(alpha: float) -> str:
        interval = series.interval(alpha)
        answer = sequential.within(interval, region)
        if answer == terms.UNDECIDED and test.op != "same":
            is_none = sequential.within(interval, margin) == sequential.HOLDS
            answer = sequential.FAILS if is_none else answer
        return answer

    answer, reasons, ends = at(sequential.ALPHA), series.reasons, filter(math.isfinite, region)
    verdict = terms.UNDECIDED
    if answer == sequential.HOLDS:
        verdict = terms.AS_CLAIMED
    elif answer == sequential.FAILS:
        crosses = sequential.within(series.interval(), margin) == sequential.HOLDS
        verdict = terms.NO_DIFFERENCE if crosses else terms.OPPOSITE
        verdict = terms.DIFFERENT if test.op == "same" else verdict
    else:
        reasons = (*reasons, series.outlook(region))
    return replace(made, verdict=verdict, reasons=reasons, at=at, boundaries=tuple(ends))


def _sized(made: Comparison, series: Series, study: ClaimBasis) -> Comparison:
    """Return ``made`` with the size of its ``series`` against the published one, where both are
    known."""
    silent = (terms.REPORTED, terms.OPPOSITE)  # an opposite effect has no size to compare
    interval = series.interval()
    if not made.published or interval is None or made.verdict in silent:
        return made
    if len(made.ratios) == 1 and series.logs:
        least, most = made.ratios[0].bounds
        if beyond := judging.beyond(series, made.published[0], most, least):
            why = judging.why_below_devices(made.ratios[0].over, made.ratios[0].under)
            reasons = (*made.reasons, ", ".join(filter(None, (*beyond, why))))
            return replace(made, size=terms.CANNOT_BE_SHOWN, reasons=reasons)
    share = study.tolerance.share(series.logs)
    size, boundaries = judging.size_of_effect(series, interval, made.published, share)
    reasons = (*made.reasons, f"size: {series.outlook(boundaries)}") if boundaries else made.reasons
    return replace(made, size=size, size_boundaries=boundaries, reasons=reasons)
