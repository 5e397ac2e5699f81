"""Measure the overhead of parbench itself, if asked in comparison with another checkout.

    parbench bench loop start           # some of them
    parbench bench --against ../old     # this checkout beside another one, in turns

docs/bench.md says what each row means.
"""

import argparse
from pathlib import Path

from parbench.files import user_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is measured, how often and beside what."""
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="of a benchmark in docs/bench.md (default: all)"
    )
    parser.add_argument(
        "--pairs", type=int, help="turns of each side, twice (10); of `pairs` restarts (4)"
    )
    parser.add_argument("--against", type=user_path, help="another checkout, which takes its turns")
    parser.add_argument(
        "--out", type=user_path, default=Path("results/bench.json"), help="default: %(default)s"
    )


def run(options: argparse.Namespace) -> None:
    """Measure."""
    from parbench.bench import benchmarks

    benchmarks.measure(options.names, options.pairs, options.against, options.out)
