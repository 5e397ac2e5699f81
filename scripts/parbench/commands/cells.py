"""List the cells of studies with their state.

The state is done, missing, stale (parbench why shows why the cell would run again), or not run,
with the reason.
"""

import argparse

from parbench.files import user_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the configuration and the studies."""
    parser.add_argument(
        "--configfile",
        type=user_path,
        action="append",
        default=[],
        help="overrides config.yaml; given again, the later file overrides the earlier",
    )
    parser.add_argument(
        "--study", action="append", default=[], help="instead of `studies` in config.yaml"
    )


def run(options: argparse.Namespace) -> None:
    """Print the list."""
    from parbench.plan import expansion, state

    state.show_all(expansion.of_files(options.configfile, options.study))
