"""Measure what parbench itself costs, beside another checkout.

docs/bench.md says what each row means.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from parbench import machine
from parbench.bench.benchmarks import ROOT, Context, benchmarks
from parbench.bench.turns import table
from parbench.errors import ParbenchError, run_main
from parbench.files import write_json


def commit(checkout: Path) -> str:
    """What is checked out there; ``-dirty`` behind it where files were changed."""
    words = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    """The command line."""
    known = benchmarks()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--list", action="store_true", help="the benchmarks, and nothing else")
    parser.add_argument("--pairs", type=int, default=10, help="turns of each side, twice (10)")
    parser.add_argument("--against", type=Path, help="another checkout, which takes its turns")
    parser.add_argument("--out", type=Path, default=Path("results/bench.json"))
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{name:<10} {function.__doc__}" for name, function in known.items()))
        return
    for name in arguments.names:
        if name not in known:
            raise ParbenchError(f"unknown benchmark {name!r}; there are {', '.join(known)}")
    if arguments.pairs < 1:
        raise ParbenchError(f"--pairs {arguments.pairs}: at least 1 is needed")
    checkouts = {"this": ROOT}
    if arguments.against is not None:
        if not (arguments.against / "Snakefile").is_file():
            raise ParbenchError(f"--against {arguments.against}: no checkout of parbench")
        checkouts["the other"] = arguments.against.absolute()
    # As on Ctrl-C: what was started is ended, temporary folders are deleted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    result = {
        "schema_version": 2,
        "checkouts": {name: commit(path) for name, path in checkouts.items()},
        "machine": machine.describe(),
        "load": {},
        "rows": [],
    }
    for name in arguments.names or known:
        print(f"{name}: {known[name].__doc__}", flush=True)
        before = os.getloadavg()
        with tempfile.TemporaryDirectory(prefix="parbench-bench-") as folder:
            rows = known[name](Context(Path(folder), checkouts, arguments.pairs))
        result["load"][name] = [before, os.getloadavg()]
        result["rows"] += [row.result() for row in rows]
        print(table([row.result() for row in rows]), flush=True)
        write_json(arguments.out, result)  # after each: the later ones may be stopped
    print(arguments.out)


if __name__ == "__main__":
    run_main(main)
