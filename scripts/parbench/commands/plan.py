"""Show what the configured studies would run on this machine, and why.

It prints which file names the studies, where cells run and why, the restarts and seeds that
`parbench decide` added, and for each study the number of cells in each state, with the reasons why
some do not run here.
`parbench cells` lists the cells; `parbench study check` says what decides a study's claims.
"""

import argparse

from parbench.commands import cells


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the configuration and the studies."""
    cells.add_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Print the plan."""
    from parbench.plan import overview
    from parbench.terminal import print_text

    for line in overview.overview(options.configfile, options.study):
        print_text(line)
