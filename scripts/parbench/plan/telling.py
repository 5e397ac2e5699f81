"""Tells of the cells of a plan on the terminal: their states, and why one would run."""

from __future__ import annotations

from collections import Counter
from typing import Any

from parbench.errors import ParbenchError
from parbench.measure import metrics_json
from parbench.plan import places
from parbench.plan.expansion import Plan
from parbench.plan.naming import identity
from parbench.plan.places import folder
from parbench.plan.state import metrics, state
from parbench.words import nearest


def find(name: str, plan: Plan) -> str:
    """The cell that ``name`` (an id or a unique part of one) means."""
    if name in plan.cells:
        return name
    matches = [cell for cell in plan.cells if name in cell]
    if len(matches) == 1:
        return matches[0]
    if matches:
        some = "\n  ".join(matches[:10])
        raise ParbenchError(f"{name!r} means {len(matches)} cells; say more of one:\n  {some}")
    raise ParbenchError(
        f"unknown cell {name!r}{nearest(name, plan.cells, listed=False)}; "
        "`python scripts/cells.py list` prints all"
    )


def show_all(plan: Plan) -> None:
    """Print every cell with its state."""
    width = max(map(len, plan.cells))
    counts: Counter[str] = Counter()
    for cell_id in plan.cells:
        word, reasons = state(cell_id, plan)
        counts[word] += 1
        shown = "" if word in ("done", "missing") else reasons[0]
        print(f"{cell_id:<{width}}  {word:<10} {shown}".rstrip())
    total = ", ".join(f"{number} {word}" for word, number in counts.items())
    print(f"\n{len(plan.cells)} cells: {total}")


def show_why(cell_id: str, plan: Plan) -> None:
    """Print why a cell would run, and where a finished one tells what it was run with."""
    word, reasons = state(cell_id, plan)
    print(f"{cell_id}: {word}")
    if word == "done":
        print("It would not run: settings, code, image and data are those it was trained with.")
    elif word == "not run":
        print(f"It is not run here: {reasons[0]}. It runs by itself where that exists.")
    elif word == "unreadable":
        print(f"Its state cannot be told: {reasons[0]}")
        return
    else:
        print("It would run because")
        for reason in reasons:
            print(f"  - {reason}")
    if word == "missing":
        _show_changed(cell_id, plan)
    if found := metrics(cell_id):
        print(f"It was run {found['started']} to {found['finished']}, status {found['status']}:")
        print(f"  {folder(cell_id) / 'metrics.json'}")


def _show_changed(cell_id: str, plan: Plan) -> None:
    """Name the finished cells of the same name, and what was edited since."""
    now = identity(plan.cells[cell_id].json())
    name = cell_id.rpartition("-")[0]
    for path in sorted((places.RESULTS / "cells").glob(f"{name}-*/metrics.json")):
        print(f"{path.parent.name} is finished; since then")
        for change in _differences(identity(metrics_json.read(path)["cell"]), now):
            print(f"  - {change}")


def _differences(then: Any, now: Any, key: str = "") -> list[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        return [
            line
            for part in sorted(set(then) | set(now))
            for line in _differences(then.get(part), now.get(part), f"{key}.{part}".lstrip("."))
        ]
    return [] if then == now else [f"{key}: {then} became {now}"]
