"""Run a command for some minutes, then interrupt it as Ctrl-C does: its cells write a checkpoint.

    make report MINUTES=9
    python3 scripts/within.py --minutes 9 -- make report

It ends with the command's own status or, if the time was not enough, with 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from parbench.arguments import duration
from parbench.cache import print_message
from parbench.errors import run_main
from parbench.files import read_record

PROGRESS = Path("results/plan/progress.json")


def run(command: list[str], minutes: float) -> int:
    """Run ``command`` for at most ``minutes``, and the time that its cells take to stop."""
    begun, started = time.time(), []

    def forward(number: int, frame: object) -> None:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    # Before it starts: a program that a shell starts with `&` ignores SIGINT, and so would this.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    # make measure wants no report.
    wanted = {"PARBENCH_REPORT_WHEN_STOPPED": "1"} if "report" in command else {}
    process = subprocess.Popen(command, process_group=0, env=os.environ | wanted)
    started.append(process)
    try:
        return process.wait(60 * minutes)
    except subprocess.TimeoutExpired:
        print_message(f"{minutes:g} minutes are over; running cells write a checkpoint and end")
        forward(signal.SIGINT, None)
        process.wait()
    print_message(f"{done(begun)}; the same command goes on from here")
    return 1


def done(begun: float) -> str:
    """Say how many cells of the run that ``begun`` then have a result."""
    progress = read_record(PROGRESS, "started", "cells") if PROGRESS.exists() else None
    if progress is None or progress["started"] < begun:
        return "no cell had begun yet"
    cells = progress["cells"]
    finished = sum(Path("results/cells", cell, "metrics.json").exists() for cell in cells)
    return f"{finished} of the {len(cells)} cells that were left are done"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=duration, required=True)
    parser.add_argument("command", nargs="+", help="-- program and its arguments")
    arguments = parser.parse_args()
    return run(arguments.command, arguments.minutes)


if __name__ == "__main__":
    run_main(main)
