"""Preview a study before anything is trained: its cells, what each published value will be
compared with, and what will decide each claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from parbench import strategies
from parbench.files import user_path
from parbench.plan import config_files, consistency, expansion, places, state
from parbench.plan.expansion import Plan
from parbench.plan.published import ClaimTest, Published
from parbench.plan.yaml_file import YamlMapping
from parbench.runs.metrics import METRICS
from parbench.runs.operator_metrics import is_operator, operator_metric
from parbench.terminal import aligned, print_text
from parbench.verdicts import claims_json, judging, plan_results, terms
from parbench.verdicts.claims import DENIES, KINDS, JudgedPart
from parbench.verdicts.comparisons import Comparison
from parbench.verdicts.controls import pairs_without_controls
from parbench.verdicts.forecast import forecast
from parbench.verdicts.groups import Group
from parbench.verdicts.matching import METRIC_ALIASES, described_hardware
from parbench.verdicts.sequential import Series
from parbench.verdicts.tables import Measured


def preview(plan: Plan, name: str) -> Iterator[str]:
    """Yield lines on the study ``name``; existing results are not read.

    Raises ParbenchError if a selection of published values is ambiguous.
    """
    measured, anywhere = plan_results.measured(plan, name), _with_all_hardware(plan, name)
    not_run = {group.id: group.not_run for group in measured.groups.values() if group.not_run}
    yield f"{name}: {measured.plan.study.title}"
    yield from ("", "Cells", *_cells(measured))
    yield from _missing_controls(plan_results.measured(anywhere, name))
    yield from ("", "Data", *_data(plan, measured))
    if measured.plan.study.published:
        yield from ("", "How they differ from the source", *_differences(measured))
        path = measured.source.path
        of = f", by line of {places.shown(path)}" if path else ""
        yield from (
            "",
            f"Published values{of}",
            *_values(plan_results.measured(anywhere, name), not_run),
        )
    yield from ("", "Claims", *_claims(anywhere, name, not_run))


def _with_all_hardware(plan: Plan, name: str) -> Plan:
    """Return ``plan`` as if all hardware and software were available, so that anything else that a
    comparison lacks shows on this machine, too."""
    study = plan.studies[name]
    free = {
        key: [group.model_copy(update={"not_run": None}) for group in getattr(study, key)]
        for key in ("groups", "together", "pairs")
    }
    return replace(plan, not_run={}, studies={name: study.model_copy(update=free)})


def _cells(measured: Measured) -> list[str]:
    lines = [["Model", "Variant", "On", "Work", "Seeds", "In turns with", "Runs here"]]
    for group in measured.groups.values():
        others = [
            f"{pair.baseline} ({len(pair.restarts)})"
            for pair in measured.plan.pairs
            if (pair.model, pair.variant) == (group.model, group.variant)
        ]
        turns = ", ".join(dict.fromkeys(others)) or "-"
        keys = [group.model, group.variant, group.describe_hardware(), _work(group)]
        lines.append([*keys, str(len(group.seeds)), turns, group.not_run or "yes"])
    brackets = (
        f"In brackets: restarts to begin with. At least {terms.FEWEST} are needed to decide; "
        "`make report` keeps measuring what they leave undecided (budget_minutes)."
    )
    return [*aligned(lines), *([brackets] if measured.plan.pairs else [])]


def _missing_controls(measured: Measured) -> Iterator[str]:
    """Yield a line for each kind of devices that pairs run on and no A/A pair does."""
    missing = {
        (KINDS[pair.kind], side.describe_hardware()): (side.variant, pair.kind)
        for pair, side in pairs_without_controls(measured.groups)
    }
    for (kind, devices), (variant, measures) in missing.items():
        inference = ", inference: true" * (measures == "predicting")
        yield (
            f"There is no A/A pair of {kind} on {devices}, so that no verdict on a pair with such "
            f"a side is firm; add {{variant: {variant}, baseline: {variant}{inference}}} to "
            "pairs.compare."
        )


def _work(group: Group) -> str:
    """Return what one of its cells trains: ``2 epochs of 2,048 samples``."""
    if group.trained_by:
        return "predicts"
    training, samples = group.training, group.dataset.train_samples
    epochs = f"{training.epochs} epoch{'s' * (training.epochs != 1)} of "
    if training.steps is not None:
        return f"{epochs}{training.steps:,} steps"
    return epochs + ("all samples" if samples is None else f"{samples:,} samples")


def _data(plan: Plan, measured: Measured) -> Iterator[str]:
    """Yield for each dataset of the study whether it exists on this machine."""
    for name in dict.fromkeys(group.dataset.name for group in measured.groups.values()):
        path = plan.datasets[name].get("path")
        if path is None:
            there = (places.RESULTS / "data" / name / "digest.json").exists()
            yield f"{name}: {'exists' if there else 'the first run downloads or makes it'}"
        elif user_path(path, f"datasets.{name}.path").exists():
            yield f"{name}: {path}"
        else:
            yield f"{name}: {path} does not exist, and no cell runs without it"


def _differences(measured: Measured) -> Iterator[str]:
    groups = list(measured.groups.values())
    names_by_text: dict[str, list[str]] = {}
    for group in groups:
        texts = [group.differs, group.scores_differ and f"{group.scores_differ} (scores only)"]
        texts += judging.scale_difference(group, measured.plan.study)
        for text in filter(None, texts):
            names_by_text.setdefault(text, []).append(f"{group.model} {group.variant}")
    for text, names in names_by_text.items():
        where = "" if len(names) == len(groups) else f" ({', '.join(names)})"
        yield f"{text}{where}"
    if assumed := ", ".join(measured.plan.study.assumed):
        yield f"not stated by the source, assumed: {assumed}"
    if not names_by_text and not assumed:
        yield "in nothing that the study states"


def _values(measured: Measured, not_run: Mapping[str, str]) -> Iterator[str]:
    if not measured.source.rows:
        yield "none: the study names no source (`published`)"
    selected = [
        (group, {row.line for row in measured.source.selected(group)})
        for group in measured.groups.values()
    ]
    unselected: list[int] = []
    line_by_reasons: dict[str, int] = {}
    for row in measured.source.rows:
        on = f"{row.model} {row.strategy} on {described_hardware(row)}"
        value = f"{row.metric} {row.published_value or row.value} {row.published_unit or row.unit}"
        beside = [
            f"{_beside(measured, group, row, line_by_reasons)}{_not_run_here(not_run, group)}"
            for group, lines in selected
            if row.line in lines
        ]
        if beside:
            yield f"line {row.line}, {on}, {value}: {'; '.join(beside)}"
        else:
            unselected.append(row.line)
    if unselected:
        yield f"no cell selects {_lines(unselected)} (`published` of variants)"


def _lines(numbers: Sequence[int]) -> str:
    """Return ascending ``numbers`` of lines in words: ``line 2``, or ``lines 2 to 5, 9``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words_of_runs = (f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"line{'s' * (len(numbers) > 1)} {', '.join(words_of_runs)}"


def _beside(
    measured: Measured, group: Group, row: Published, line_by_reasons: dict[str, int]
) -> str:
    """Return how the value of ``row`` will be compared with a group that selects it.

    ``line_by_reasons``: by reasons, the first CSV line that has them, so that later lines can say
    `as line N`; updated here.
    """
    name = METRIC_ALIASES.get(row.metric, row.metric)
    metric = operator_metric(name) if is_operator(name) else METRICS.get(name)
    if metric is None:
        return "not a metric of parbench"
    who = f"{group.variant} on {group.describe_hardware()}"
    if metric.kind == "ratio" and group.baseline is None:
        return f"{who} has no baseline"
    published, why = measured.published(metric, group)
    verdict = measured.verdict(metric, group, Series({}), published)
    if verdict.word in terms.UNJUDGED:
        reasons = "; ".join(filter(None, [*verdict.reasons, why]))
        first = line_by_reasons.setdefault(reasons, row.line)
        return (
            f"beside {who}, {verdict.word}: {reasons if first == row.line else f'as line {first}'}"
        )
    return f"compared with {who}"


def _not_run_here(not_run: Mapping[str, str], *groups: Group) -> str:
    """Return why ``groups`` are not run here, as the end of a line; empty if they are."""
    reasons = dict.fromkeys(not_run[group.id] for group in groups if group.id in not_run)
    return f"; not run here: {', '.join(reasons)}" if reasons else ""


def _claims(plan: Plan, name: str, not_run: Mapping[str, str]) -> Iterator[str]:
    claims = [judged for judged in plan_results.judged(plan, [name]) if judged.parts]
    if not claims:
        yield "none that the study tests"
    for judged in claims:
        lines: list[str] = []
        decidable: list[bool] = []
        for part in judged.parts:
            lines.append(
                f"  - {claims_json.heading(claims_json.part(part))}: {_claimed(part.test)}"
            )
            for each in part.comparisons:
                obstacle = (
                    "" if part.against_source else _not_run_here(not_run, *_needed(not_run, each))
                )
                lines.append(f"      {_decided(part, each)}{obstacle}")
                decidable.append(each.awaits_results and not part.against_source and not obstacle)
        here = f"{sum(decidable)} of {len(decidable)} comparisons can be decided here"
        yield from (f"{judged.name}: {judged.claim.claim} ({here})", *lines)


def _needed(not_run: Mapping[str, str], each: Comparison) -> list[Group]:
    """Return the groups that must run for a comparison to be decided."""
    groups = each.groups
    if _by_pairs(each):
        return [group for group in groups if not _alone(not_run, group)]
    return groups


def _claimed(test: ClaimTest) -> str:
    """Return what a part claims in words: ``above 1, published 1.8 or more``."""
    none = "a difference above 0" if test.is_of_differences else "a ratio above 1"
    margin = "" if test.margin is None else f" within {test.margin:g}"
    claimed = {
        ">": none,
        "<": none.replace("above", "below"),
        "same": f"the same{margin}",
        "report": "reported, not judged",
        "largest": "the largest component",
    }[test.op]
    if not test.sizes:
        return claimed
    return f"{claimed}, published {claims_json.range_text(test.sizes, '{:g}'.format)}"


def _by_pairs(each: Comparison) -> bool:
    return bool(each.ratios) and all(ratio.pair for ratio in each.ratios)


def _alone(not_run: Mapping[str, str], group: Group) -> bool:
    """Return whether ``group`` is not run only because it runs solely as a side of pairs."""
    return not_run.get(group.id) == strategies.load(group.strategy).PAIRS_ONLY


def _decided(part: JudgedPart, each: Comparison) -> str:
    """Return what will decide a comparison, or why nothing can."""
    sides = " against ".join(
        f"{ratio.over.variant} over {ratio.under.variant} of {ratio.over.model}"
        for ratio in each.ratios
    )
    if each.group:
        sides = f"{each.group.variant} of {each.group.model}"
    opening = f"{sides}: " if sides else ""
    if part.against_source:
        most = f"its own devices give at most {part.test.most:.3g} times"
        why = most if part.is_beyond else DENIES
        return f"{opening}{part.against_source}, whatever is measured: {why}"
    if each.awaits_results:
        how = "pairs" if _by_pairs(each) else "whole trainings, seed by seed"
        return f"{opening}decided by {how}"
    reasons = "; ".join(each.reasons) or "for want of cells"
    word = "" if reasons.startswith(each.verdict) else f"{each.verdict}: "
    return f"{opening}{word}{reasons}"


def show(study: str, configfiles: Sequence[Path]) -> None:
    """Print the ``study`` as it would be run, without running anything.

    ``configfiles`` override config.yaml. Raises ParbenchError.
    """
    if study in config_files.read(configfiles).studies:
        study = str(places.study(study))  # a configfile may name it by its path
    changes: YamlMapping = {"studies": [study]}
    config = config_files.read(configfiles, changes, "parbench study check")
    deployment = config.resolved_deployment()
    consistency.checked_claims()
    plan = expansion.plan(config, deployment)
    (name,) = config.studies
    runnable = plan.runnable(name)
    remaining = [cell for cell in runnable if state.state(cell, plan)[0] != "done"]
    foretold = forecast(plan, remaining, config.budget_minutes)
    nothing = "all its cells are done" if runnable else "no cell of it runs here"
    for line in (*preview(plan, name), "", str(deployment), *(foretold or [nothing])):
        print_text(line)
