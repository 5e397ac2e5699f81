"""Forecast what a run will train, how long earlier runs took, and which claims it tests."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection

from parbench.plan import places, state
from parbench.plan.expansion import Plan
from parbench.plan.study_plan import StudyPlan
from parbench.runs.records import seconds
from parbench.verdicts import evidence, plan_results


def forecast(plan: Plan, cells: Collection[str], budget_minutes: float = 0) -> list[str]:
    """Return lines for the user: how many ``cells`` a run will train, how many of them again, how
    long they take one after the other, which claims they can test, and that `make report` continues
    for ``budget_minutes``. Empty without ``cells``.
    """
    if not cells:
        return []
    count = f"{len(cells):,} {'cell' if len(cells) == 1 else 'cells'} to train"
    retrained = sum((places.folder(cell) / "metrics.json").exists() for cell in cells)
    note = f", {retrained} of them again (`parbench why <cell>` says why)" if retrained else ""
    further = (
        f"`make report` then keeps measuring what is undecided, for at most {budget_minutes:g} "
        f"minute{'s' * (budget_minutes != 1)} (budget_minutes)"
    )
    lines = [f"{count}{note}; {_hours(plan, cells)}", *_answers(plan)]
    return [*lines, *([further] if budget_minutes else [])]


def _hours(plan: Plan, cells: Collection[str]) -> str:
    """Return how long ``cells`` take, by earlier runs of their groups on this machine or, if there
    are none, in evidence."""
    uncounted, machines = set(cells), set[str]()
    local: list[float] = []
    elsewhere: list[tuple[float, float]] = []
    for name, study in plan.studies.items():
        kept = None
        for group in study.measured:
            count = len(uncounted.intersection(group.cells))
            uncounted.difference_update(group.cells)  # several studies may share cells
            durations = [
                spent for cell in group.cells if count and (spent := state.seconds_of(cell))
            ]
            if durations:
                local += [statistics.mean(durations)] * count
            elif count:
                kept = kept or _kept(name)
                if durations := kept[1].get(_name_without_digest(group.id)):
                    elsewhere += [(min(durations), max(durations))] * count
                    machines.add(kept[0])
    estimates: list[str] = []
    one_by_one = " of training one after the other"
    if local:
        estimates.append(f"by earlier runs some {_duration(sum(local))}{one_by_one}")
    if elsewhere:
        ends = (_duration(sum(each[n] for each in elsewhere)) for n in (0, 1))
        where = f"on {', '.join(sorted(machines))}, the machine of the evidence, cells of these"
        estimates.append(f"{where} names took {' to '.join(dict.fromkeys(ends))}{one_by_one}")
    unknown = len(cells) - len(local) - len(elsewhere)
    if not estimates:
        return "how long it takes is unknown: none of it has run here; the first cells will show"
    return ", and ".join([*estimates, *([f"{unknown} for which it is unknown"] if unknown else [])])


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{math.ceil(seconds / 60)} min"


def _kept(study: str) -> tuple[str, dict[str, list[float]]]:
    """Return the machine and, by group, the cells' seconds of a study's newest evidence."""
    by_date = sorted(
        evidence.FOLDER.glob(f"{study}-*.json"), key=lambda path: path.stem[-len("2026-01-31") :]
    )
    for path in reversed(by_date):
        made = evidence.read(path)
        if made["study"] == study:
            return made["machine"], {
                _name_without_digest(group.id): [
                    seconds(run["started"], run["finished"])
                    for cell in group.cells
                    if (run := made["cells"].get(cell))
                ]
                for group in StudyPlan.of(made["plan"], path).measured
            }
    return "", {}


def _name_without_digest(group: str) -> str:
    """Return a group's id without its digest, which also depends on the dataset."""
    return group.rpartition("-")[0]


def _answers(plan: Plan) -> list[str]:
    """Return which claims can be tested once all is trained; existing results are not read."""
    claims = [judged for judged in plan_results.judged(plan, plan.studies) if judged.parts]
    testable = [
        judged.name
        for judged in claims
        if any(
            comparison.awaits_results
            for part in judged.parts
            if not part.against_source
            for comparison in part.comparisons
        )
    ]
    if not claims:
        return []
    counted = f"{len(testable)} of {len(claims)} claim{'s' * (len(claims) != 1)}"
    return [f"{counted} can be tested with them: {', '.join(testable) or 'none'}"]
