"""Train one cell: lock its devices, start and watch its ranks, keep its result.

`parbench command <cell>` prints the line that does this for a cell.
"""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the cell's files."""
    parser.add_argument("--cell", type=Path, required=True, help="cell.json")
    parser.add_argument("--data", type=Path, required=True, help="folder of the converted dataset")
    parser.add_argument("--out", type=Path, required=True, help="metrics.json to write")
    parser.add_argument("--log", type=Path, help="default: log.txt beside metrics.json")


def run(options: argparse.Namespace) -> int:
    """Train the cell; return the status of its job."""
    from parbench.launch import launcher

    log = options.log or options.out.with_name("log.txt")
    return launcher.launch(options.cell, options.data, options.out, log)
