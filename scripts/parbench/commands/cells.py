"""List the cells of studies with their state.

The state is done, missing, running, failed, stale (`parbench why` shows why the cell would run
again), not run, or unreadable, with the reason.
"""

import argparse

from parbench.arguments import add_configfile


def add_arguments(parser: argparse.ArgumentParser, beside: bool = False) -> None:
    """Add the configuration and the studies; ``beside``: as of ``add_configfile``."""
    add_configfile(parser, beside=beside)
    parser.add_argument(
        "--study", action="append", default=[], help="instead of `studies` in config.yaml"
    )


def run(options: argparse.Namespace) -> None:
    """Print the list."""
    from parbench.plan import expansion, state

    state.show_all(expansion.of_files(options.configfile, options.study))
