"""List the cells of studies with their state.

A state is done, missing, stale (parbench why says why it would run again) or why it does not run
here.
"""

import argparse

from parbench.files import user_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says whose cells."""
    parser.add_argument(
        "--configfile", type=user_path, action="append", default=[], help="laid over config.yaml"
    )
    parser.add_argument(
        "--study", action="append", default=[], help="instead of `studies` in config.yaml"
    )


def run(options: argparse.Namespace) -> None:
    """Print the list."""
    from parbench.plan import expansion, state

    state.show_all(expansion.of_files(options.configfile, options.study))
