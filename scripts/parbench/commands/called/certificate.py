"""Certify what studies use, in their image, or take the certificate from the cache."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the plans, the place and the file to write."""
    parser.add_argument(
        "--plan", type=Path, nargs="+", required=True, help="results/plan/<study>.json"
    )
    parser.add_argument("--place", required=True, help="an image's label, host, or python-...")
    parser.add_argument("--python", help="path of a Python of the user's own")
    parser.add_argument("--out", type=Path, required=True, help="certificate to write")


def run(options: argparse.Namespace) -> None:
    """Make the certificate."""
    from parbench.equivalence import certificate

    certificate.make(options.plan, options.place, options.out, options.python)
