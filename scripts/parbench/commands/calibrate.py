"""Estimate from A/A pairs measured on a machine how often verdicts err and how long they take.

docs/verdicts.md describes the method, and which errors are acceptable.
"""

import argparse

from parbench.arguments import duration
from parbench.files import user_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the pairs, and how long a restart takes."""
    parser.add_argument(
        "files",
        nargs="*",
        type=user_path,
        help="metrics.json of A/A pairs (those in results/cells)",
    )
    parser.add_argument(
        "--seconds", type=duration, help="how long a restart takes (default: as measured)"
    )


def run(options: argparse.Namespace) -> None:
    """Print the table."""
    from parbench.bench import calibration

    calibration.show(options.files, options.seconds)
