"""Compare two training programs in turns: which is faster, and by how much.

docs/versus.md says what a program needs: `from parbench_turns import step`, and `step(samples=...)`
after each training step.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

from parbench import machine
from parbench.errors import ParbenchError, run_main
from parbench.files import make_folder, user_path
from parbench.launch import devices
from parbench.training.program import Program
from parbench.versus.measuring import compare
from parbench.versus.page import Result


def cores_of(text: str | None) -> list[int]:
    """Return the cores that ``text`` lists, such as 0,1; without it, all that may be used."""
    usable = machine.usable_cores()
    if text is None:
        return usable
    listed = text.split(",")
    for name in listed:
        if not name.isdecimal() or int(name) not in usable:
            raise ParbenchError(
                f"--cores {text}: {name!r} is no core that this process may use; it may use "
                f"{', '.join(map(str, usable))}"
            )
    return sorted(set(map(int, listed)))


def variables(entries: list[str]) -> dict[str, str]:
    """Return ``NAME=VALUE`` entries by name."""
    for entry in entries:
        if not entry.partition("=")[0] or "=" not in entry:
            raise ParbenchError(f"--env {entry}: write NAME=VALUE")
    return dict(entry.split("=", 1) for entry in entries)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--a", required=True, metavar="COMMAND", help="the one, as typed")
    parser.add_argument("--b", required=True, metavar="COMMAND", help="the other")
    parser.add_argument("--minutes", type=float, default=5, help="the most that it may take (5)")
    parser.add_argument(
        "--label", nargs=2, default=["A", "B"], metavar=("A", "B"), help="what to call them"
    )
    parser.add_argument("--cores", metavar="0,1", help="of both; by default all")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="for both; repeatable"
    )
    parser.add_argument(
        "--patience", type=float, default=600, help="seconds to a first step, or for a turn (600)"
    )
    parser.add_argument("--out", type=user_path, help="folder (results/versus/<date and time>)")
    arguments = parser.parse_args()
    for name in ("minutes", "patience"):
        if not 0 < getattr(arguments, name) < math.inf:
            raise ParbenchError(f"--{name} {getattr(arguments, name)}: must be more than 0")
    default = Path(f"results/versus/{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}")
    folder = arguments.out or default
    cores, given = cores_of(arguments.cores), variables(arguments.env)
    make_folder(folder)
    # Nothing is waited for longer than all may take.
    patience, patience_key = min(
        (60 * arguments.minutes, "--minutes"), (arguments.patience, "--patience")
    )
    programs = [
        Program(
            label,
            command,
            given,
            folder / f"{side}.log",
            patience,
            patience_key=patience_key,
        )
        for label, command, side in zip(
            arguments.label, (arguments.a, arguments.b), "ab", strict=True
        )
    ]
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # ends both, too
    with devices.whole(cores, "versus"):
        os.sched_setaffinity(0, cores)  # both programs inherit it
        found = compare(*programs, arguments.minutes, lambda line: print(line, flush=True))
    result = Result(*programs, found, machine.describe(), cores, arguments.minutes)
    page = result.write(folder)
    print(f"\n{result.sentence}\nA beside itself: {result.equal_sides.equality}\n{page}")


if __name__ == "__main__":
    run_main(main)
