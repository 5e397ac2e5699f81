"""Forecast what a run will train, how long it takes by earlier runs, and which claims it tests."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection

from parbench.plan import places, state
from parbench.plan.expansion import Plan
from parbench.runs.records import seconds
from parbench.verdicts import asked, evidence


def forecast(plan: Plan, cells: Collection[str]) -> list[str]:
    """Return lines for the user: how many ``cells`` a run will train, how many of them again, how
    long they take one after the other, and which claims they can test. Empty without ``cells``.
    """
    if not cells:
        return []
    count = f"{len(cells):,} {'cell' if len(cells) == 1 else 'cells'} to train"
    retrained = sum((places.folder(cell) / "metrics.json").exists() for cell in cells)
    note = f", {retrained} of them again (`cells.py why <cell>` says why)" if retrained else ""
    return [f"{count}{note}; {_hours(plan, cells)}", *_answers(plan)]


def _hours(plan: Plan, cells: Collection[str]) -> str:
    """Return how long ``cells`` take, by earlier runs of their groups here or else in evidence."""
    expected, uncounted, machines = [], set(cells), set()
    for name, study in plan.studies.items():
        kept = None
        for group in study.measured:
            count = len(uncounted.intersection(group.cells))
            uncounted.difference_update(group.cells)  # several studies may share cells
            durations = [spent for cell in group.cells if count and (spent := state.took(cell))]
            if count and not durations:
                kept = kept or _kept(name)
                durations = kept[1].get(_configuration(group.id), [])
                machines |= {kept[0]} if durations else set()
            if durations:
                expected += [statistics.mean(durations)] * count
    if not expected:
        return "how long is unknown, since nothing like it has run here"
    total = sum(expected)
    duration = f"{total / 3600:.1f} h" if total >= 3600 else f"{math.ceil(total / 60)} min"
    where = f" (some on {', '.join(sorted(machines))})" if machines else ""
    unknown = len(cells) - len(expected)
    rest = f", and {unknown} for which it is unknown" if unknown else ""
    return f"by earlier runs{where} some {duration} of training one after the other{rest}"


def _kept(study: str) -> tuple[str, dict[str, list[float]]]:
    """Return the machine and, by configuration, the cells' seconds of a study's newest evidence."""
    by_date = sorted(
        evidence.FOLDER.glob(f"{study}-*.json"), key=lambda path: path.stem[-len("2026-01-31") :]
    )
    for path in reversed(by_date):
        made = evidence.read(path)
        if made["study"] == study:
            return made["machine"], {
                _configuration(group["id"]): [
                    seconds(run["started"], run["finished"])
                    for cell in group["cells"]
                    if (run := made["cells"].get(cell))
                ]
                for group in [*made["plan"]["groups"], *made["plan"].get("pairs", [])]
            }
    return "", {}


def _configuration(group: str) -> str:
    """Return a group's id without its digest, which also depends on the dataset."""
    return group.rpartition("-")[0]


def _answers(plan: Plan) -> list[str]:
    """Return which claims can be tested once all is trained; existing results are not read."""
    claims = [judged for judged in asked.judged(plan, plan.studies) if judged.parts]
    testable = [
        judged.name
        for judged in claims
        if any(
            comparison.waits
            for part in judged.parts
            if not part.is_impossible
            for comparison in part.comparisons
        )
    ]
    if not claims:
        return []
    return [f"of {len(claims)} claims they test {len(testable)}: {', '.join(testable) or 'none'}"]
