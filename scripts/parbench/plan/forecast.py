"""What a run will train, and how long that will take by what earlier runs took."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from datetime import datetime

from parbench.errors import ParbenchError
from parbench.files import read_json
from parbench.plan.expansion import Plan
from parbench.plan.places import folder


def forecast(plan: Plan, cells: Collection[str]) -> str:
    """How many ``cells`` a run will train, how many of them again, and the hours that all of them
    take, one after the other. Empty where there are none."""
    if not cells:
        return ""
    count = f"{len(cells):,} {'cell' if len(cells) == 1 else 'cells'} to train"
    again = sum((folder(cell) / "metrics.json").exists() for cell in cells)
    told = f", {again} of them again (`cells.py why <cell>` says why)" if again else ""
    return f"{count}{told}; {_hours(plan, cells)}"


def _hours(plan: Plan, cells: Collection[str]) -> str:
    """What ``cells`` take by earlier runs of their groups."""
    expected, wanted = [], set(cells)
    for group in (group for study in plan.studies.values() for group in study.measured):
        number = len(wanted.intersection(group.cells))
        wanted.difference_update(group.cells)  # of which several studies may ask
        known = [seconds for cell in group.cells if number and (seconds := took(cell))]
        if known:
            expected += [statistics.mean(known)] * number
    if not expected:
        return "how long is unknown, since nothing like it has run here"
    total = sum(expected)
    spelled = f"{total / 3600:.1f} hours" if total >= 360 else f"{total / 60:.0f} minutes"
    unknown = len(cells) - len(expected)
    rest = f", and {unknown} for which it is unknown" if unknown else ""
    return f"by earlier runs some {spelled} of training one after the other{rest}"


def took(cell: str) -> float | None:
    """Seconds that a cell took from its start to its end; None where it has no result."""
    try:
        found = read_json(folder(cell) / "metrics.json")
        started, finished = (datetime.fromisoformat(found[key]) for key in ("started", "finished"))
    except (ParbenchError, KeyError, TypeError, ValueError):
        return None
    return (finished - started).total_seconds()
