"""Run one side of a pair, in turns with the other; print one line per turn."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the pair's files, and the side."""
    parser.add_argument("--cell", type=Path, required=True, help="cell.json of a pair")
    parser.add_argument("--side", type=int, required=True, help="which of its sides, from 0")
    parser.add_argument("--data", type=Path, required=True, help="folder of the converted dataset")


def run(options: argparse.Namespace) -> None:
    """Run the rank."""
    from parbench import exits

    with exits.with_tracebacks():
        from parbench.training import pair_rank

        pair_rank.run_rank(options.cell, options.side, options.data)
