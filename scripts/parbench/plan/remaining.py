"""How far a run of the workflow is, and how long its cells took."""

from __future__ import annotations

import time
from pathlib import Path

from parbench.errors import ParbenchError
from parbench.files import read_json, write_json
from parbench.plan import places


def write_progress(cells: list[str]) -> None:
    """Tell the launcher which ``cells`` this run will train, for its count and time left."""
    told = {"started": time.time(), "cells": cells}
    write_json(places.RESULTS / "plan" / "progress.json", told)


class Progress:
    """Count and time left of the workflow's run that this cell belongs to.

    Comes from results/plan/progress.json, which the workflow writes when it starts; without it, or
    for a cell outside of it, there is no count.
    """

    def __init__(self, cell_id: str, out: Path):
        self._folder = out.absolute().parent.parent
        path = self._folder.parent / "plan" / "progress.json"
        plan = read_json(path) if path.exists() else {"started": 0.0, "cells": []}
        self._cells = plan["cells"] if cell_id in plan["cells"] else []
        self._started = plan["started"]

    def count(self) -> str:
        """ "[12/30] ": cells that are done, of all that the run trains."""
        return f"[{self._finished()}/{len(self._cells)}] " if self._cells else ""

    def left(self) -> str:
        """ " (about 2 min 10 s left)" if the others take as long as those before; or nothing."""
        finished = self._finished()
        waiting = len(self._cells) - finished
        if not finished or not waiting:
            return ""
        seconds = (time.time() - self._started) / finished * waiting
        return f" (about {duration(seconds)} left)"

    def _finished(self) -> int:
        """How many cells this run has finished."""
        paths = (self._folder / name / "metrics.json" for name in self._cells)
        return sum(path.exists() and path.stat().st_mtime >= self._started for path in paths)


def wall_seconds(folder: Path) -> float | None:
    """What the cell of a ``folder`` took, from start to end; None where that cannot be read: it is
    for guesses, and these fail nobody."""
    try:
        return float(read_json(folder / "wall.json")["seconds"])
    except (ParbenchError, KeyError, TypeError, ValueError):
        return None


def duration(seconds: float) -> str:
    """45 s, 2 min 10 s, 3 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
