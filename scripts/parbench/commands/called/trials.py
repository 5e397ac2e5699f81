"""Run a certificate's trials as one of their ranks; `parbench certify` starts this."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder and the file to write."""
    parser.add_argument("--work", type=Path, required=True, help="folder with todo.json")
    parser.add_argument("--out", type=Path, required=True, help="errors to write, as JSON")


def run(options: argparse.Namespace) -> None:
    """Run them."""
    from parbench.equivalence import certify

    certify.run_rank(options.work, options.out)
