"""What a run will train, and how long that will take by what earlier runs took."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection
from datetime import datetime

from parbench.cell import Cell
from parbench.errors import ParbenchError
from parbench.files import read_json
from parbench.plan.expansion import Plan
from parbench.plan.places import folder
from parbench.plan.state import changes, described_data


def forecast(plan: Plan, cells: Collection[str]) -> str:
    """How many ``cells`` a run will train, why those again that have results, and the hours that
    all of them take, one after the other. Empty where there are none."""
    if not cells:
        return ""
    again: Counter[str] = Counter()
    for cell in cells:
        if found := _result(cell):
            again[_why(plan.cells[cell], found, plan)] += 1
    first = len(cells) - again.total()
    parts = [f"{number} again ({why})" for why, number in again.most_common()]
    parts += [f"{first} for the first time"] if first and again else []
    told = f": {', '.join(parts)}" if parts else ""
    return f"{_count(cells)} to train{told}; {_hours(plan, cells)}"


def _count(cells: Collection[str]) -> str:
    return f"{len(cells):,} {'cell' if len(cells) == 1 else 'cells'}"


def _result(cell: str) -> dict | None:
    """What stands in a cell's metrics.json, unchecked; None where nothing can be told of it."""
    try:
        return read_json(folder(cell) / "metrics.json")
    except ParbenchError:
        return None


def _why(cell: Cell, found: dict, plan: Plan) -> str:
    try:
        reasons = changes(cell, found["environment"], described_data(cell), plan)
    except (ParbenchError, KeyError, TypeError):
        return "their files cannot be read"
    return reasons[0].short if reasons else "asked for"


def _hours(plan: Plan, cells: Collection[str]) -> str:
    """What ``cells`` take by earlier runs: of the same group, else of its model and strategy."""
    kind_of = {
        cell: (group.id, (group.model, group.strategy))
        for study in plan.studies.values()
        for group in study.groups
        for cell in group.cells
    }
    took = defaultdict(list)
    for cell, kinds in kind_of.items():
        if (seconds := _seconds(cell)) is not None:
            for kind in kinds:
                took[kind].append(seconds)
    expected = []
    for cell in cells:
        known = next((took[kind] for kind in kind_of[cell] if kind in took), None)
        if known:
            expected.append(statistics.mean(known))
    if not expected:
        return "how long is unknown, since nothing like it has run here"
    total = sum(expected)
    spelled = f"{total / 3600:.1f} hours" if total >= 360 else f"{total / 60:.0f} minutes"
    unknown = len(cells) - len(expected)
    rest = f", and {unknown} for which it is unknown" if unknown else ""
    return f"by earlier runs some {spelled} of training one after the other{rest}"


def _seconds(cell: str) -> float | None:
    """How long a cell's run took, from its start to its end."""
    try:
        found = read_json(folder(cell) / "metrics.json")
        times = (datetime.fromisoformat(found[key]) for key in ("started", "finished"))
        started, finished = times
        return max((finished - started).total_seconds(), 0.0)
    except (ParbenchError, KeyError, TypeError, ValueError):
        return None
