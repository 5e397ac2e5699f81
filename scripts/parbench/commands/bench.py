"""Measure the overhead of parbench itself, alone or in comparison with another checkout.

    parbench bench loop start           # only these benchmarks
    parbench bench --against ../old     # this checkout and another one, alternately

docs/bench.md says what each row means.
"""

import argparse
from pathlib import Path

from parbench.files import user_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to measure, how often, and what to compare it with."""
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a benchmark of docs/bench.md (default: all)"
    )
    parser.add_argument(
        "--pairs",
        type=int,
        help="how many times to run A B B A (10); for `pairs`, the restarts (4)",
    )
    parser.add_argument("--against", type=user_path, help="another checkout to compare with")
    parser.add_argument(
        "--out", type=user_path, default=Path("results/bench.json"), help="default: %(default)s"
    )


def run(options: argparse.Namespace) -> None:
    """Measure."""
    from parbench.bench import benchmarks

    benchmarks.measure(options.names, options.pairs, options.against, options.out)
