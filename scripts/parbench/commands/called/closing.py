"""Print the summary of a run: the results of the report's studies, and the report's files."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing."""


def run(options: argparse.Namespace) -> None:
    """Print it."""
    from parbench.verdicts import closing

    closing.show()
