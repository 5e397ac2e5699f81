"""How long cells will take, and how far a run of the workflow is, from what earlier ones took."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Mapping
from pathlib import Path

from parbench.errors import ParbenchError
from parbench.files import read_json


def seconds_left(
    cells: Mapping[str, dict], finished: Mapping[str, float], slots: Mapping[str, int]
) -> float | None:
    """Seconds until all ``cells`` are trained; None while nothing is known.

    ``cells``: {id: {device, devices, like}}; ``finished``: {id: the seconds that it took};
    ``slots``: {cpu, cuda}, the devices of this machine. A cell is expected to take as long as the
    mean of its group (``like``) or, when none of that is finished, of all.
    """
    waiting = [cell for name, cell in cells.items() if name not in finished]
    if not waiting:
        return 0.0
    known = [(cells[name]["like"], seconds) for name, seconds in finished.items() if name in cells]
    if not known:
        return None
    everybody = statistics.fmean(seconds for _, seconds in known)
    work: dict[str, float] = {}
    longest = 0.0
    for cell in waiting:
        alike = [seconds for like, seconds in known if like == cell["like"]]
        seconds = statistics.fmean(alike) if alike else everybody
        longest = max(longest, seconds)
        work[cell["device"]] = work.get(cell["device"], 0.0) + seconds * cell["devices"]
    # Kinds of devices work side by side, and no cell is ever split.
    return max(longest, *(amount / max(1, slots[kind]) for kind, amount in work.items()))


class Progress:
    """Count and time left of the workflow's run that this cell belongs to.

    Comes from results/plan/progress.json, which the workflow writes when it starts; without it, or
    for a cell outside of it, there is no count.
    """

    def __init__(self, cell_id: str, out: Path):
        self._folder = out.absolute().parent.parent
        path = self._folder.parent / "plan" / "progress.json"
        plan = read_json(path) if path.exists() else {"cells": {}}
        self._cells = plan["cells"] if cell_id in plan["cells"] else {}
        self._started = plan.get("started", 0.0)
        self._slots = plan.get("slots", {})

    def count(self) -> str:
        """ "[12/30] ": cells that are done, of all that the run trains."""
        return f"[{len(self._finished())}/{len(self._cells)}] " if self._cells else ""

    def left(self) -> str:
        """ " (about 2 min 10 s left)", or nothing."""
        if not self._cells:
            return ""
        walls = {name: seconds for name, seconds in self._finished().items() if seconds is not None}
        missing = self._finished().keys() - walls.keys()
        cells = {name: cell for name, cell in self._cells.items() if name not in missing}
        seconds = seconds_left(cells, walls, self._slots)
        return f" (about {duration(seconds)} left)" if seconds else ""

    def _finished(self) -> dict[str, float | None]:
        """Cells that this run has finished, with the seconds that each took."""
        found: dict[str, float | None] = {}
        for name in self._cells:
            with contextlib.suppress(FileNotFoundError):
                if (self._folder / name / "metrics.json").stat().st_mtime >= self._started:
                    found[name] = wall_seconds(self._folder / name)
        return found


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
