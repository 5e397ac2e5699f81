"""Train one cell, or predict with it, as one of its ranks; write metrics.json."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the cell's files."""
    parser.add_argument("--cell", type=Path, required=True, help="cell.json")
    parser.add_argument("--data", type=Path, required=True, help="folder of the converted dataset")
    parser.add_argument("--out", type=Path, required=True, help="metrics.json to write")


def run(options: argparse.Namespace) -> None:
    """Run the rank."""
    from parbench import exits

    with exits.with_tracebacks():
        from parbench.training import train

        train.run_rank(options.cell, options.data, options.out)
