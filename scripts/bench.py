"""Measure the overhead of parbench itself, if asked in comparison with another checkout.

docs/bench.md says what each row means.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from parbench import git, machine
from parbench.bench.benchmarks import BENCHMARKS, ROOT, Context
from parbench.bench.timing import line
from parbench.errors import ParbenchError, run_main
from parbench.files import user_path, write_json


def commit(checkout: Path) -> str:
    """Return the commit, with ``-dirty`` if files were changed; empty without git."""
    try:
        return git.run(checkout, "describe", "--always", "--dirty", "--abbrev=40")
    except ParbenchError:
        return ""


def main() -> None:
    """Run the command line."""
    names = ", ".join(BENCHMARKS)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {names}")
    parser.add_argument(
        "--pairs", type=int, help="turns of each side, twice (10); of `pairs` restarts (4)"
    )
    parser.add_argument("--against", type=user_path, help="another checkout, which takes its turns")
    parser.add_argument("--out", type=user_path, default=Path("results/bench.json"))
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BENCHMARKS):
        raise ParbenchError(f"unknown benchmark {min(unknown)!r}; there are {names}")
    if arguments.pairs is not None and arguments.pairs < 1:
        raise ParbenchError(f"--pairs {arguments.pairs}: at least 1 is needed")
    checkouts = {"this": ROOT}
    if arguments.against is not None:
        if not (arguments.against / "Snakefile").is_file():
            raise ParbenchError(f"--against {arguments.against}: no checkout of parbench")
        checkouts["the other"] = arguments.against.absolute()
    result = {
        "schema_version": 5,
        "checkouts": {name: commit(path) for name, path in checkouts.items()},
        "machine": machine.describe(),
        "load": {},
        "rows": [],
    }
    for name in arguments.names or BENCHMARKS:
        print(f"{name}: {BENCHMARKS[name].__doc__}", flush=True)
        load_before = os.getloadavg()
        with tempfile.TemporaryDirectory(prefix="parbench-bench-") as folder:
            turns = arguments.pairs or (4 if name == "pairs" else 10)
            rows = BENCHMARKS[name](Context(Path(folder), checkouts, turns))
        result["load"][name] = [load_before, os.getloadavg()]
        result["rows"] += [row.result() for row in rows]
        print(*map(line, rows), sep="\n", flush=True)
        write_json(arguments.out, result)  # after each benchmark: the run may be stopped
    print(arguments.out)


if __name__ == "__main__":
    run_main(main)
