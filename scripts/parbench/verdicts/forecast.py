"""Forecast what a run will train, how long it takes by earlier runs, and which claims it tests."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection

from parbench import files
from parbench.measure.metrics import seconds
from parbench.plan import places, state
from parbench.plan.expansion import Plan
from parbench.verdicts import asked
from parbench.verdicts.evidence import FOLDER


def forecast(plan: Plan, cells: Collection[str]) -> list[str]:
    """Return lines for the user: how many ``cells`` a run will train, how many of them again, how
    long they take one after the other, and which claims they can test. Empty without ``cells``.
    """
    if not cells:
        return []
    count = f"{len(cells):,} {'cell' if len(cells) == 1 else 'cells'} to train"
    again = sum((places.folder(cell) / "metrics.json").exists() for cell in cells)
    told = f", {again} of them again (`cells.py why <cell>` says why)" if again else ""
    return [f"{count}{told}; {_hours(plan, cells)}", *_answers(plan)]


def _hours(plan: Plan, cells: Collection[str]) -> str:
    """Return how long ``cells`` take, by earlier runs of their groups here or else in evidence."""
    expected, wanted, elsewhere = [], set(cells), set()
    for name, study in plan.studies.items():
        kept = None
        for group in study.measured:
            number = len(wanted.intersection(group.cells))
            wanted.difference_update(group.cells)  # several studies may share cells
            known = [spent for cell in group.cells if number and (spent := state.took(cell))]
            if number and not known:
                kept = kept or _kept(name)
                known = kept[1].get(_configuration(group.id), [])
                elsewhere |= {kept[0]} if known else set()
            if known:
                expected += [statistics.mean(known)] * number
    if not expected:
        return "how long is unknown, since nothing like it has run here"
    total = sum(expected)
    spelled = f"{total / 3600:.1f} h" if total >= 3600 else f"{math.ceil(total / 60)} min"
    where = f" (some on {', '.join(sorted(elsewhere))})" if elsewhere else ""
    unknown = len(cells) - len(expected)
    rest = f", and {unknown} for which it is unknown" if unknown else ""
    return f"by earlier runs{where} some {spelled} of training one after the other{rest}"


def _kept(study: str) -> tuple[str, dict[str, list[float]]]:
    """Return the machine and, by configuration, the cells' seconds of a study's newest evidence."""
    newest = sorted(
        FOLDER.glob(f"{study}-*.json"), key=lambda path: path.stem[-len("2026-01-31") :]
    )
    for path in reversed(newest):
        made = files.read_json(path)
        if made["study"] == study:
            return made["machine"], {
                _configuration(group["id"]): [
                    seconds(run) for cell in group["cells"] if (run := made["cells"].get(cell))
                ]
                for group in [*made["plan"]["groups"], *made["plan"].get("pairs", [])]
            }
    return "", {}


def _configuration(group: str) -> str:
    """Return a group's id without its digest, which also depends on the dataset."""
    return group.rpartition("-")[0]


def _answers(plan: Plan) -> list[str]:
    """Return which claims can be tested once all is trained; existing results are not read."""
    claims = [each for each in asked.judged(plan, plan.studies) if each.claim.test]
    told = [each.name for each in claims if any(made.waits for made in each.comparisons)]
    if not claims:
        return []
    return [f"of {len(claims)} claims they test {len(told)}: {', '.join(told) or 'none'}"]
