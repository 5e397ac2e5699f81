"""Add restarts and seeds to undecided comparisons until all are decided or the time is up.

Each round runs what can be decided in the time left, so that a short time is not spread over
everything. results/restarts.json keeps how many each pair or group has; the plan reads it, so that
the next run of the workflow has them, too. Looking at the result after each one is statistically
valid: see sequential.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from parbench import decided, programs
from parbench.arguments import of_snakemake, without_configuration
from parbench.deploy.deployment import CompletedSoftware
from parbench.errors import ParbenchError
from parbench.plan import config_files, expansion, places, state
from parbench.plan.study_plan import PairGroup, PlannedGroup
from parbench.runs import records
from parbench.terminal import aligned, print_text
from parbench.verdicts import closing, plan_results, sequential
from parbench.verdicts.comparisons import Comparison
from parbench.verdicts.controls import timed_pairs
from parbench.verdicts.groups import Group, Runs
from parbench.verdicts.pairs import EQUAL, Compared
from parbench.verdicts.ratios import with_interval
from parbench.verdicts.sequential import Series
from parbench.verdicts.terms import (
    AGAINST_SOURCE,
    FAILS,
    FEWEST,
    HOLDS_IN_PART,
    NOT_TESTED,
    NOT_TOLD_APART,
    REFUTED,
    UNDECIDED,
)
from parbench.words import count

AGAINST = (FAILS, HOLDS_IN_PART, *AGAINST_SOURCE, UNDECIDED)  # what ``check`` fails for


@dataclass(frozen=True)
class Open:
    """An undecided comparison with ``n`` values so far.

    Each further value needs one cell from each of ``parts`` and takes ``cost`` seconds. ``needed``:
    estimated number of values that decide it, None if that is too many.
    """

    parts: tuple[PairGroup | PlannedGroup, ...]
    n: int
    cost: float
    needed: int | None

    @classmethod
    def of(
        cls,
        parts: Iterable[PairGroup | PlannedGroup],
        series: Series,
        boundaries: tuple[float, ...],
    ) -> Open:
        """Return the comparison of ``series``, decided when its interval excludes a boundary."""
        interval = series.interval()
        needed = FEWEST if interval is None else sequential.needed(interval, boundaries)
        return cls(tuple(parts), len(series.values), series.cost, needed)

    @property
    def seconds(self) -> float:
        """The seconds still needed if the estimate holds; infinite if ``needed`` is None."""
        return math.inf if self.needed is None else max(1, self.needed - self.n) * self.cost


def still_open(plan: expansion.Plan) -> Iterator[Open]:
    """Yield what is undecided in ``plan``.

    This is whether a pair's variant is faster, slower or equal, claims, and numbers that have
    published values. Of several questions about the same cells, only the one that is answered first
    is included.
    """
    for name in plan.studies:
        soonest: dict[tuple[str, ...], Open] = {}
        for question in (*_of_pairs(name, plan), *_of_claims(name, plan), *_of_numbers(name, plan)):
            # Two names of several models together may compare the same cells.
            cells = tuple(sorted({cell for part in question.parts for cell in part.cells}))
            known = soonest.setdefault(cells, question)
            ids = {part.id: part for part in (*known.parts, *question.parts)}
            nearest = min(known, question, key=lambda each: each.seconds)
            soonest[cells] = replace(nearest, parts=tuple(ids.values()))
        yield from soonest.values()


def _of_pairs(name: str, plan: expansion.Plan) -> Iterator[Open]:
    tolerance = plan.studies[name].study.tolerance.relative
    for pair in plan.studies[name].pairs:
        if pair.not_run is None:
            series = _compared(pair).series
            # A/A controls of other pairs are equal by one margin everywhere.
            share = EQUAL if pair.variant == pair.baseline else tolerance
            if boundaries := series.undecided(share):
                yield Open.of([pair], series, boundaries)


def _of_claims(name: str, plan: expansion.Plan) -> Iterator[Open]:
    for comparison in _claimed(name, plan):
        pairs = [ratio.pair for ratio in comparison.ratios if ratio.pair]
        parts = _pairs_of(pairs, name, plan) if pairs else _groups(comparison)
        if comparison.measured is not None and (boundaries := _boundaries(comparison)):
            yield Open.of(parts, comparison.measured, boundaries)


def _of_numbers(name: str, plan: expansion.Plan) -> Iterator[Open]:
    measured = plan_results.measured(plan, name, _done(name, plan))
    planned = {group.id: group for group in plan.studies[name].groups}
    for group in measured.groups.values():
        for metric in measured.metrics(group):
            series = measured.series(metric, group)
            published, _ = measured.published(metric, group)
            verdict = measured.verdict(metric, group, series, published)
            if verdict.word not in (UNDECIDED, NOT_TOLD_APART) or not series.values:
                continue
            pair = group.baseline_pair if metric.kind == "ratio" else None
            parts = [planned[each] for each in group.members or [group.id]]
            parts = _pairs_of([pair], name, plan) if pair else parts
            yield Open.of(parts, series, verdict.boundaries)


def _pairs_of(compared: Iterable[Compared], name: str, plan: expansion.Plan) -> list[PairGroup]:
    cells = [each.cells for each in compared]
    return [pair for pair in plan.studies[name].pairs if tuple(pair.cells) in cells]


def _done(name: str, plan: expansion.Plan) -> list[str]:
    return [cell for cell in plan.runnable(name) if state.state(cell, plan)[0] == "done"]


def _boundaries(comparison: Comparison) -> tuple[float, ...]:
    """Return the values that the interval must exclude to decide the direction, then the size."""
    is_open = comparison.verdict == UNDECIDED or not comparison.size_boundaries
    return comparison.boundaries if is_open else comparison.size_boundaries


def _groups(compared: Comparison) -> list[Group]:
    return [side for ratio in compared.ratios for side in (ratio.over, ratio.under)]


def _compares(compared: Comparison) -> str:
    return " over ".join(group.id for group in _groups(compared))


def _compared(pair: PairGroup) -> Compared:
    paths = {cell: places.folder(cell) / "metrics.json" for cell in pair.cells}
    runs = {cell: records.read(path) for cell, path in paths.items() if path.exists()}
    return Compared.of(pair, Runs.of(runs).pairs)


def _claimed(name: str, plan: expansion.Plan) -> list[Comparison]:
    """Return the comparisons of the study's claims that need more values.

    They are undecided, or their size may or may not be the published one, or they fail, but not
    clearly enough to decide a claim made of several comparisons.
    """
    return [
        comparison
        for claim in plan_results.judged(plan, [name], _done(name, plan))
        for part in claim.parts
        if not part.against_source
        for comparison in part.judged
        if comparison.verdict == UNDECIDED
        or comparison.size == NOT_TOLD_APART
        or (claim.verdict == UNDECIDED and comparison.verdict in REFUTED)
    ]


# ---------------------------------------------------------------- the program


def decide(minutes: float, configfiles: Sequence[Path], settings: Sequence[str]) -> None:
    """Add restarts and seeds for at most ``minutes``, and print the results.

    ``configfiles`` and ``settings`` (key=value) override config.yaml. Raises ParbenchError.
    """
    changes = config_files.parse_changes(settings)
    config = config_files.read(configfiles, changes)
    deployment = config.resolved_deployment()
    software = CompletedSoftware(deployment)  # before anything is timed
    why_unavailable = expansion.unavailable_here(config, software)
    _check(expansion.plan(config, deployment, why_unavailable))
    plan, _ = _decided(lambda: expansion.plan(config, deployment), minutes)
    print_text("\n".join(_summary(plan)))


def decide_for_report(arguments: Sequence[str]) -> bool:
    """Decide what `budget_minutes` of the configuration allow, and then write the report again.

    ``arguments``: Snakemake's arguments in the run that made the report. Returns whether there is
    one of its studies: a dry run makes none. Raises ParbenchError.
    """
    options = of_snakemake(arguments)
    if options.dryrun:
        return False
    changes = config_files.parse_changes(options.config or [])
    config = config_files.read(options.configfile, changes)
    deployment = config.resolved_deployment()

    def planned() -> expansion.Plan:
        # The report's run may have been for a cluster, which has other devices than this machine.
        why_unavailable = expansion.unavailable_as_planned(config.studies)
        return expansion.plan(config, deployment, why_unavailable)

    _, measured = _decided(planned, config.budget_minutes, *without_configuration(arguments))
    # A deleted result is measured again here: Snakemake considers its tables up to date.
    if measured:
        _snakemake("reports/final.html", "reports/final.pdf", *arguments)
    return closing.is_of(config.studies)


def check(configfiles: Sequence[Path], settings: Sequence[str]) -> int:
    """Print the claims that are refuted, ruled out by their source or undecided, and what was not
    tested or measured; return 1 if any claim is such, or a cell is missing."""
    changes = config_files.parse_changes(settings)
    config = config_files.read(configfiles, changes)
    plan = expansion.plan(config, config.resolved_deployment())
    done = {cell for study in plan.studies for cell in _done(study, plan)}
    judged = plan_results.judged(plan, list(plan.studies), done)
    against = [each for each in judged if each.verdict in AGAINST]
    for each in against:
        print_text(f"{each.name} ({each.study}): {each.sentence_with_reason}")
    untested = sum(each.verdict == NOT_TESTED for each in judged)
    missing = len({cell for study in plan.studies for cell in plan.runnable(study)} - done)
    print_text(
        f"{count(len(judged), 'claim')}: {len(against)} refuted, impossible, "
        f"contradicted or undecided, {untested} not tested here"
    )
    if missing:
        print_text(f"{count(missing, 'cell')} not measured: make report")
    return 1 if against or missing else 0


def _check(plan: expansion.Plan) -> None:
    studies = plan.studies.values()
    comparable = [(study.pairs, study.study.published, study.study.claims) for study in studies]
    if not any(map(any, comparable)):
        raise ParbenchError(
            f"studies: {', '.join(plan.studies)}: none has `pairs`, whose times are compared, "
            "or claims that are judged"
        )


def _decided(
    planned: Callable[[], expansion.Plan],
    minutes: float,
    others: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> tuple[expansion.Plan, bool]:
    """Measure in rounds for ``minutes``; return the plan, and whether anything was measured.

    ``others``: arguments for Snakemake beside those of the studies' plans; ``settings``: values
    for `--config` (key=value).
    """
    end, plan = time.monotonic() + 60 * minutes, planned()
    measured = _measure(plan, others, settings)
    while time.monotonic() < end:
        seconds_left = end - time.monotonic()
        chosen = _nearest(still_open(plan), seconds_left)
        if not chosen:
            break
        parts = [part for comparison in chosen for part in comparison.parts]
        seconds = sum(comparison.cost for comparison in chosen)
        between = _between(plan, parts, seconds_left - seconds)
        seconds += sum(_compared(pair).series.cost for pair in between)
        another = "".join(f", with one of {pair.id} between" for pair in between)
        print(
            f"parbench: undecided comparisons: {len(chosen)}; one more restart or seed of each"
            f"{another} takes some {math.ceil(seconds / 60)} min",
            flush=True,
        )
        parts += between
        decided.keep_restarts({part.id: len(part.cells) + 1 for part in parts})
        plan = planned()
        measured |= _measure(plan, others, settings)
    return plan, measured


def _nearest(known: Iterable[Open], seconds_left: float) -> list[Open]:
    """Return what can be decided in ``seconds_left``, one after the other, the quickest first.

    If that is nothing, return only the quickest, to bring it nearer to a verdict.
    """
    able = [each for each in known if math.isfinite(each.seconds) and each.cost <= seconds_left]
    able.sort(key=lambda each: each.seconds)
    ends = accumulate(each.seconds for each in able)
    return [each for each, end in zip(able, ends, strict=True) if end <= seconds_left] or able[:1]


def _between(
    plan: expansion.Plan, parts: Sequence[PairGroup | PlannedGroup], seconds: float
) -> list[PairGroup]:
    """Return the pair to measure once between restarts of the only one in ``parts``.

    Restarts of one pair in direct succession are too alike to count as independent. It is the pair
    with the fewest restarts of those whose restart takes at most ``seconds``; none if there is no
    other, or ``parts`` has several entries, which are measured in rotation.
    """
    if len(parts) != 1:
        return []
    others = (
        pair
        for study in plan.studies.values()
        for pair in study.pairs
        if pair.not_run is None and pair.id != parts[0].id
    )
    fitting = (pair for pair in others if _compared(pair).series.cost <= seconds)
    fewest = min(fitting, key=lambda pair: len(pair.cells), default=None)
    return [fewest] if fewest else []


def _measure(plan: expansion.Plan, others: Sequence[str], settings: Sequence[str]) -> bool:
    """Run, by Snakemake, the pairs that are not done and the seeds that were added.

    Returns whether there were any.
    """
    measured = False
    for study in plan.studies.values():
        entries = [
            *study.pairs,
            *(entry for entry in study.groups if entry.id in plan.decided.restarts),
        ]
        cells = [cell for entry in entries if not entry.not_run for cell in entry.cells]
        undone = [cell for cell in cells if state.state(cell, plan)[0] != "done"]
        if undone:
            paths = (str(places.folder(cell) / "metrics.json") for cell in undone)
            # Each study states itself, and the budget is this program's: Snakemake need not
            # announce it again. The arguments end with values for `--config`.
            own = [each for each in settings if not each.startswith("studies=")]
            _snakemake(*others, *study.arguments, *own, "budget_minutes=0", "--", *paths)
            measured = True
    return measured


def _snakemake(*arguments: str) -> None:
    """Run Snakemake. Raises ParbenchError if it fails."""
    if programs.snakemake(*arguments):
        raise ParbenchError(
            "not all was measured: the error above says why; if there is none, the run was "
            "interrupted, and the same command continues it"
        )


def _summary(plan: expansion.Plan) -> list[str]:
    """Return a table of all comparisons of times, then a line for each open comparison by seeds."""
    lines = [["study", "model", "variant", "baseline", "times as fast", "restarts", "reading"]]
    for name, study in plan.studies.items():
        groups = plan_results.measured(plan, name, _done(name, plan)).groups
        for pair in timed_pairs(groups):
            measured = pair.compared.series
            ratio = with_interval(measured) or "not run"
            reading = pair.reading(groups.values(), study.study.tolerance.relative)
            keys = [name, pair.group.model, pair.variant, pair.baseline.variant]
            reading = reading or "; ".join(pair.compared.reasons)
            lines.append([*keys, ratio, str(measured.seeds), reading])
    seed_lines = (
        ": ".join([name, _compares(comparison), comparison.verdict, *comparison.reasons[-1:]])
        for name in plan.studies
        for comparison in _claimed(name, plan)
        if not any(ratio.pair for ratio in comparison.ratios)
    )
    return [*aligned(lines), *seed_lines]
