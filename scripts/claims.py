"""What sources claim in words, each with a verdict from the cells at hand (docs/verdicts.md).

A claim's test divides a metric of one selection of groups by that of another, seed by seed. Each
pair of groups that differ in nothing but what the test names is a comparison with a verdict of its
own; the claim's follows from them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

import tables
from audit import Finding
from seeds import too_few
from tables import Group, Metric, Published, Summary

HOLDS = "holds"
FAILS = "does not hold"
UNDECIDED = tables.UNDECIDED
REPORTED = "reported"
UNTESTED = "cannot be tested here"
VERDICTS = (HOLDS, FAILS, UNDECIDED, REPORTED, UNTESTED)

EVEN = (1.0, 1.0)  # no noise but what the interval holds
EXACT = 1e-6  # how near two numbers are that are one
Band = tuple[float, float]


@dataclass(frozen=True)
class Trial:
    """A study of the report that rebuilds a claim's source.

    ``means`` of its table by (group, metric): for metrics that are a name and a part of it.
    """

    name: str
    study: Mapping
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


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim and its verdict.

    ``ratios``: one, or two of different models, of which the first is divided by the second; none
    where no two groups could be set beside each other. ``group``: of what is told of one group
    alone. ``published`` and ``measured`` are numbers, or a word.
    """

    trial: Trial
    verdict: str
    reasons: tuple[str, ...]
    ratios: tuple[Ratio, ...] = ()
    group: Group | None = None
    published: float | str | None = None
    measured: Summary | str | None = None
    band: Band | None = None

    @property
    def scaled(self) -> list[str]:
        """In what its groups differ from published scale."""
        groups = [ratio.over for ratio in self.ratios] if self.group is None else [self.group]
        return list(dict.fromkeys(words for group in groups for words in group.plan["scaled"]))

    @property
    def place(self) -> str:
        """The study, and whether it is scaled."""
        return f"{self.trial.name} (scaled)" if self.scaled else self.trial.name


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict, what it follows from, and why in one sentence."""

    name: str
    claim: Mapping
    verdict: str
    reason: str
    comparisons: tuple[Comparison, ...]


def judge(
    claims: Mapping[str, Mapping],
    trials: Collection[Trial],
    published: pd.DataFrame,
    findings: Collection[Finding],
) -> list[Judged]:
    """Every claim of the sources that ``trials`` rebuild.

    ``published`` is a frame of ``tables.read_published``, ``findings`` what the audit of it found.
    """
    judged = []
    for name, claim in claims.items():
        mine = [trial for trial in trials if trial.study["published"] == claim["study"]]
        if not mine:
            continue
        if "test" in claim:
            made = [each for trial in mine for each in _comparisons(claim, trial, published)]
            verdict, reason = _whole(made)
        else:
            made = []
            verdict, reason = _by_audit(claim, findings)
        judged.append(Judged(name, claim, verdict, reason, tuple(made)))
    return judged


def _whole(comparisons: Collection[Comparison]) -> tuple[str, str]:
    """The verdict of a claim, and how many of its comparisons say what."""
    counts = Counter(each.verdict for each in comparisons)
    tested = [verdict for verdict in (FAILS, UNDECIDED, HOLDS, REPORTED) if counts[verdict]]
    if not tested:
        missing = {reason for each in comparisons for reason in each.reasons}
        return UNTESTED, "; ".join(sorted(missing))
    told = ", ".join(f"{name} {counts[name]}" for name in VERDICTS if counts[name])
    places = dict.fromkeys(each.place for each in comparisons if each.verdict != UNTESTED)
    return tested[0], f"comparisons: {told}; on {', '.join(places)}"


def _by_audit(claim: Mapping, findings: Collection[Finding]) -> tuple[str, str]:
    """The verdict of a claim without test: published numbers alone may contradict it."""
    found = [
        finding
        for finding in findings
        if (finding.study, finding.check) == (claim["study"], claim.get("finding"))
    ]
    if found:
        return FAILS, f"by the published numbers alone ({found[0].check})"
    return UNTESTED, "no cell measures what it is about"


# --------------------------------------------------------------------------------------------------
# What is compared with what


def _comparisons(claim: Mapping, trial: Trial, published: pd.DataFrame) -> list[Comparison]:
    """All of a claim's comparisons in one study; never none."""
    test = claim["test"]
    if test["op"] == "largest":
        return _largest(test["metric"], trial, published)
    if test["op"] == "equal":
        return _equal(test, trial, published)
    source = Published(published, trial.study["published"])
    groups = _measuring(trial.groups, test["metric"])
    ratios = [_ratio(claim, trial, *pair, source) for pair in _pairs(test, groups)]
    if "models" not in test:
        made = [_compared(test, trial, (ratio,)) for ratio in ratios]
    else:
        first, second = ([r for r in ratios if r.over.plan["model"] == m] for m in test["models"])
        made = [
            _compared(test, trial, (one, other))
            for one in first
            for other in second
            if _place(one) == _place(other)
        ]
    return made or [Comparison(trial, UNTESTED, (f"{trial.name} has {_lacks(test, groups)}",))]


def _measuring(groups: Iterable[Group], name: str) -> list[Group]:
    """Those that are compared by the metric ``name``, of a model or of several together.

    What is instrumented runs slower, and apart; a few steps of an epoch have no score.
    """
    metric = tables.METRICS.get(name)
    kept = (each for each in groups if each.plan["training"].get("profile", "none") == "none")
    if metric is None:  # each of them lacks it
        return list(kept)
    scored = metric.kind == "accuracy"
    return [
        each
        for each in kept
        if each.measures(metric) and not (scored and each.plan["training"]["steps"] is not None)
    ]


def _lacks(test: Mapping, groups: Collection[Group]) -> str:
    """Why a test compares none of ``groups``, which measure its metric."""
    if not groups:
        return f"no cell that measures {test['metric']}"
    for side in ("numerator", "denominator"):
        if not any(_fits(group, test[side]) for group in groups):
            wanted = {**test[side], **test[side].get("options", {})}
            wanted.pop("options", None)
            words = ", ".join(f"{key} {value}" for key, value in wanted.items())
            return f"no cell with {words}"
    return "no two cells that differ in this alone"


def _pairs(test: Mapping, groups: Collection[Group]) -> Iterator[tuple[Group, Group]]:
    """The pairs of groups that a test compares, models and variants in the study's order.

    Where several have the same models and batches, those count that stand for most published rows:
    the source's own configuration, and not the variants beside it. What was not run takes no other
    pair's place, and is told where it would have counted.
    """
    alike: dict[tuple, list[tuple[Group, Group]]] = {}
    for over in (group for group in groups if _fits(group, test["numerator"])):
        for under in (group for group in groups if _fits(group, test["denominator"])):
            if over is not under and _alike(over, under, test):
                alike.setdefault((_work(over), _work(under)), []).append((over, under))
    for pairs in alike.values():
        ran = [pair for pair in pairs if not any(group.plan["not_run"] for group in pair)]
        least = max(map(_published_rows, ran or pairs))
        yield from (pair for pair in pairs if _published_rows(pair) >= least)


def _published_rows(pair: Iterable[Group]) -> int:
    """How many of the two stand for rows of the source."""
    return sum(group.plan["published"] is not None for group in pair)


def _fits(group: Group, selection: Mapping) -> bool:
    plan = group.plan
    hardware = plan["hardware"]
    strategies = selection.get("strategy", [plan["strategy"]])
    own = {
        "model": plan["model"],
        "device": "cpu" if hardware["device"] == "cpu" else "gpu",
        "devices": hardware["devices"],
        "nodes": hardware["nodes"],
        "batch_size": plan["training"]["global_batch"],
    }
    return (
        plan["strategy"] in ([strategies] if isinstance(strategies, str) else strategies)
        and all(
            key in plan["options"] and plan["options"][key] == value
            for key, value in selection.get("options", {}).items()
        )
        and all(selection.get(key, value) == value for key, value in own.items())
    )


def _alike(over: Group, under: Group, test: Mapping) -> bool:
    """Whether two groups agree in all that the test does not name."""
    sides = test["numerator"], test["denominator"]
    named = {key for side in sides for key in side}
    options = {key for side in sides for key in side.get("options", {})}
    ours, theirs = (_rest(group.plan, named, options) for group in (over, under))
    if ours.pop("strategy") != theirs.pop("strategy"):
        # More devices need another strategy; and one strategy's options mean nothing to another.
        if not named & {"strategy", "devices", "nodes"}:
            return False
        del ours["options"], theirs["options"]
    return ours == theirs


def _rest(plan: Mapping, named: Collection[str], options: Collection[str]) -> dict[str, Any]:
    hardware, training = dict(plan["hardware"]), dict(plan["training"])
    del hardware["name"]
    del training["min_tail"]  # follows the batch
    if "batch_size" in named:
        del training["global_batch"]
    if "device" in named:
        del hardware["device"], hardware["gpu_model"], hardware["threads"]
    if named & {"strategy", "devices", "nodes", "options"}:
        del hardware["devices"], hardware["nodes"]
    rest = {
        "strategy": plan["strategy"],
        "options": {key: value for key, value in plan["options"].items() if key not in options},
        "dataset": plan["dataset"],
        "training": training,
        "hardware": hardware,
    }
    return rest if "model" in named else {**rest, "model": plan["model"]}


def _work(group: Group) -> tuple:
    """What a group trains."""
    return group.plan["model"], group.plan["training"]["global_batch"]


def _means(group: Group) -> tuple:
    """By what it trains it."""
    return group.plan["strategy"], group.plan["hardware"]["name"]


def _place(ratio: Ratio) -> tuple:
    """What tells a ratio from others of its model."""
    sides = ratio.over, ratio.under
    return tuple((_work(group)[1], *_means(group)) for group in sides)


# --------------------------------------------------------------------------------------------------
# Numbers


def _ratio(claim: Mapping, trial: Trial, over: Group, under: Group, source: Published) -> Ratio:
    test = claim["test"]
    metric = tables.METRICS.get(test["metric"])
    stated = _stated(claim, over.plan, under.plan)
    missing = [group.plan["not_run"] for group in (over, under) if group.plan["not_run"]]
    by_seed, reasons, band = {}, [], None
    if not missing and (metric is None or metric.read is None):
        missing = [f"no cell measures {test['metric']}"]
    elif not missing:
        missing = _cautions(metric, over, under)
        but = {"global_batch"} if "batch_size" in test["numerator"] else set()
        by_seed, reasons = tables.paired_ratio(metric, over, under, but)
        reasons = [*over.failures(), *under.failures(), *reasons]
        band = _band(metric, test["op"], over, under, trial.study["tolerance"])
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
        stated or (_printed(metric, over, under, source) if metric else None),
    )


def _cautions(metric: Metric, over: Group, under: Group) -> list[str]:
    """Why the ratio of two groups does not mean what it says, and what it would take."""
    metrics = [metric]
    if metric.depends_on_clock and _means(over) != _means(under):
        metrics.append(tables.METRICS["speedup"])
    cautions = []
    for group in (over, under):
        stated = (group.plan.get("comparable") or {}).values()
        hardware = group.plan["hardware"]
        for caution in (each for metric in metrics for each in group.cautions(metric)):
            lacking = f"needs {hardware['devices']}x GPU: " if hardware["device"] == "cpu" else ""
            cautions.append(f"{lacking if caution in stated else ''}{caution}")
    return cautions


def _band(
    metric: Metric, op: str, over: Group, under: Group, tolerance: Mapping[str, float]
) -> Band | None:
    """In what range a ratio of 1 lies by chance, or counts as one; None where nobody knows."""
    if metric.depends_on_clock:
        baseline = over if under.plan["baseline"] == over.plan["id"] else under
        floor, _ = tables.group_noise_floor(baseline)
        return (floor.ci_low, floor.ci_high) if floor.n >= 2 else None
    if op != "within_noise":
        return EVEN  # the interval holds all of the noise
    if metric.kind != "accuracy":
        return 1 - tolerance["relative"], 1 + tolerance["relative"]
    unit = tables.summarise(value for run in under.ok if (value := metric.read(run))).mean
    share = tolerance["accuracy"] / unit
    return 1 - share, 1 + share


def _stated(claim: Mapping, over: Mapping, under: Mapping) -> float | None:
    """The ratio that the claim states: of all, of a model, of a batch, or of a strategy."""
    stated = claim.get("published")
    for key in (over["model"], str(over["training"]["global_batch"]), under["strategy"]):
        if isinstance(stated, Mapping):
            stated = stated.get(key, stated)
    return None if isinstance(stated, Mapping) else stated


def _printed(metric: Metric, over: Group, under: Group, source: Published) -> float | None:
    """The ratio of the source's own two numbers, where both are of the same hardware."""
    ours, theirs = (source.find(group.plan, metric) for group in (over, under))
    if ours is None or theirs is None or ours.hardware != theirs.hardware or not theirs.value:
        return None
    return ours.value / theirs.value


# --------------------------------------------------------------------------------------------------
# Verdicts


def _compared(test: Mapping, trial: Trial, ratios: tuple[Ratio, ...]) -> Comparison:
    """The verdict on one ratio, or on the first of two over the second."""
    missing = tuple(dict.fromkeys(reason for ratio in ratios for reason in ratio.missing))
    printed = [ratio.published for ratio in ratios]
    published = None if None in printed else printed[0] / math.prod(printed[1:])
    seeds = set.intersection(*(set(ratio.by_seed) for ratio in ratios))
    if missing or not seeds:
        missing = missing or ("no seed that all of them have",)
        return Comparison(trial, UNTESTED, missing, ratios, published=published)
    summary = tables.summarise(
        ratios[0].by_seed[seed] / math.prod(other.by_seed[seed] for other in ratios[1:])
        for seed in sorted(seeds)
    )
    band = _joined([ratio.band for ratio in ratios])
    value = ratios[0].stated if test.get("value") == "published" else test.get("value", 1.0)
    if value is None:
        unstated = ("the claim states no number for this",)
        return Comparison(trial, UNTESTED, unstated, ratios, published=published)
    verdict, why = decide(test["op"], value, summary, band)
    reasons = dict.fromkeys([*why, *(reason for ratio in ratios for reason in ratio.reasons)])
    return Comparison(
        trial, verdict, tuple(reasons), ratios, published=published, measured=summary, band=band
    )


def _joined(bands: Collection[Band | None]) -> Band | None:
    """The noise of a product: of independent factors, squares add up on the logarithmic scale."""
    if None in bands:
        return None
    if len(bands) == 1:
        return next(iter(bands))
    low, high = (math.hypot(*(math.log(band[end]) for band in bands)) for end in (0, 1))
    return math.exp(-low), math.exp(high)


def decide(op: str, value: float, summary: Summary, band: Band | None) -> tuple[str, list[str]]:
    """The verdict on a ratio and why, by its 95 % interval and the ``band`` of noise around 1.

    ``>`` and ``<`` hold where the whole interval lies beyond ``value`` and its noise, and do not
    where it all lies on the other side; ``within_noise`` holds where it all lies in the noise, and
    does not where none of it does. Anything else is undecided.
    """
    few = too_few(summary.n)
    if op == "report":
        return REPORTED, [few] if few else []
    if few:
        return UNDECIDED, [few]
    if band is None:
        return UNDECIDED, ["the noise floor is unknown"]
    floor, ceiling = (value * end for end in band)
    above, below = summary.ci_low > ceiling, summary.ci_high < floor
    if op == "within_noise":
        inside = floor <= summary.ci_low and summary.ci_high <= ceiling
        holds, fails, why = inside, above or below, "the interval is wider than the noise"
    else:
        holds, fails = (above, below) if op == ">" else (below, above)
        why = f"the interval reaches into the noise around {value:g}"
    if holds or fails:
        return (HOLDS if holds else FAILS), []
    return UNDECIDED, [why]


def _largest(metric: str, trial: Trial, published: pd.DataFrame) -> list[Comparison]:
    """The largest part of a metric in each group that measures it, and in the source."""
    source = Published(published, trial.study["published"])
    printed = {name for name in published["metric"] if name.startswith(f"{metric}:")}
    made = []
    for group in trial.groups:
        own = {name: mean for (of, name), mean in trial.means.items() if of == group.plan["id"]}
        parts = {name: mean for name, mean in own.items() if name.startswith(f"{metric}:")}
        found = {
            name: reference.value
            for name in sorted(printed)
            if (reference := source.find(group.plan, Metric(name, "s", "absolute", False)))
        }
        if parts or found:
            missing = group.plan["not_run"] or f"no cell measures {metric}"
            made.append(
                Comparison(
                    trial,
                    REPORTED if parts else UNTESTED,
                    () if parts else (missing,),
                    group=group,
                    published=_first(found),
                    measured=_first(parts),
                )
            )
    return made or [Comparison(trial, UNTESTED, (f"no cell of {trial.name} measures {metric}",))]


def _equal(test: Mapping, trial: Trial, published: pd.DataFrame) -> list[Comparison]:
    """A metric over another that it equals, run by run, in each group that the source has, too."""
    source = Published(published, trial.study["published"])
    for name in (test["metric"], test["against"]):
        if name not in tables.METRICS or tables.METRICS[name].read is None:
            return [Comparison(trial, UNTESTED, (f"no cell measures {name}",))]
    metric, against = (tables.METRICS[test[key]] for key in ("metric", "against"))
    made = []
    for group in _measuring(trial.groups, test["metric"]):
        printed = [source.find(group.plan, each) for each in (metric, against)]
        if None in printed or not printed[1].value:
            continue
        ratios = [metric.read(run) / value for run in group.ok if (value := against.read(run))]
        if ratios:
            exact = all(math.isclose(ratio, 1, rel_tol=EXACT) for ratio in ratios)
            verdict, reasons = (HOLDS if exact else FAILS), ()
        else:
            verdict = UNTESTED
            reasons = (group.plan["not_run"] or "; ".join(group.failures()) or "no score",)
        made.append(
            Comparison(
                trial,
                verdict,
                reasons,
                group=group,
                published=printed[0].value / printed[1].value,
                measured=tables.summarise(ratios) if ratios else None,
                band=EVEN,
            )
        )
    return made or [Comparison(trial, UNTESTED, (f"no cell of {trial.name} has a score",))]


def _first(parts: Mapping[str, float]) -> str | None:
    """The largest of the parts, by the name after the metric's."""
    return max(parts, key=parts.get).partition(":")[2] if parts else None
