"""Show why a cell would run again, or why it would not.

It compares what the cell's metrics.json was measured with and what a run would use: settings, code,
data, weights, and image or packages.
"""

import argparse

from parbench.commands import cells


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the cell, the configuration and the studies."""
    parser.add_argument("cell", help="id, or a unique part of it (parbench cells lists all)")
    cells.add_arguments(parser, beside=True)


def run(options: argparse.Namespace) -> None:
    """Print the reasons."""
    from parbench.plan import expansion, state

    plan = expansion.of_files(options.configfile, options.study)
    state.show_why(state.find(options.cell, plan), plan)
