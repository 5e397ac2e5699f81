"""Run a command for some minutes, then interrupt it as Ctrl-C does: its cells write a checkpoint.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from parbench import programs
from parbench.cache import print_message
from parbench.files import read_record

PROGRESS = Path("results/plan/progress.json")


def run(command: Sequence[str], minutes: float, variables: Mapping[str, str] | None = None) -> int:
    """Run ``command`` for at most ``minutes``, plus the time that its cells take to stop.

    ``variables`` are added to its environment. Returns its status, or 1 if it was interrupted.
    """
    begun = time.time()
    started: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: object) -> None:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    # Set before the start: a program that a shell starts with `&` ignores SIGINT, and so would this
    # one.
    with programs.handled(forward):
        added = os.environ | dict(variables or {})
        process = subprocess.Popen(command, process_group=0, env=added)
        started.append(process)
        try:
            return process.wait(60 * minutes)
        except subprocess.TimeoutExpired:
            print_message(f"{minutes:g} minutes are over; running cells write a checkpoint and end")
            forward(signal.SIGINT, None)
            process.wait()
    print_message(f"{_done(begun)}; the same command goes on from here")
    return 1


def _done(begun: float) -> str:
    """Return how many cells of the run that ``begun`` at that time have a result, as a sentence."""
    progress = read_record(PROGRESS, "started", "cells") if PROGRESS.exists() else None
    if progress is None or progress["started"] < begun:
        return "no cell had begun yet"
    cells = progress["cells"]
    finished = sum(Path("results/cells", cell, "metrics.json").exists() for cell in cells)
    return f"{finished} of the {len(cells)} cells that were left are done"
