"""Parse command lines: types of values for argparse, and Snakemake's own arguments."""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import re
from collections.abc import Sequence

from parbench.files import user_path


def count(text: str) -> int:
    """Return ``text`` as a whole number of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return number


def duration(text: str) -> float:
    """Return ``text`` as a finite number of at least 0 (seconds or minutes), for argparse."""
    number = float(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 0")
    return number


def memory(text: str) -> str:
    """Return ``text`` if it is an amount of memory in Spark's notation, such as 2g or 512m."""
    if not re.fullmatch("[1-9][0-9]*[mgt]", text):
        raise argparse.ArgumentTypeError(f"{text} is not an amount of memory, such as 2g or 512m")
    return text


def port(text: str) -> int:
    """Return ``text`` as the number of a TCP port that any user may listen on, for argparse."""
    number = int(text)
    if not 1024 <= number < 65536:
        raise argparse.ArgumentTypeError(f"{text} is not a port from 1024 to 65535")
    return number


def add_configfile(
    parser: argparse.ArgumentParser, help_text: str = "overrides config.yaml", beside: bool = False
) -> None:
    """Add `--configfile` to a command: several files, also given one by one, the last wins.

    ``beside``: whether the command takes names without an option; a `--configfile` is then one
    file, since names that follow it would be taken for files.
    """
    one_by_one = "; given again, the later file overrides the earlier" if beside else ""
    parser.add_argument(
        "--configfile",
        type=user_path,
        action="append" if beside else "extend",
        nargs=None if beside else "+",
        default=[],
        metavar="FILE",
        help=help_text + one_by_one,
    )


def add_config(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Add `--config` to a command, as Snakemake has it; given again, it adds to the first."""
    parser.add_argument(
        "--config", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help=help_text
    )


def of_snakemake(arguments: Sequence[str]) -> argparse.Namespace:
    """Return Snakemake's arguments, parsed from its command line ``arguments`` and its profiles.

    Raises SystemExit or snakemake's CliException for a mistake, which Snakemake itself prints.
    """
    from snakemake.cli import parse_args

    silent = io.StringIO()  # Snakemake prints which profiles it reads, each time
    with contextlib.redirect_stderr(silent), contextlib.redirect_stdout(silent):
        return parse_args(list(arguments))[1]


def without_configuration(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return Snakemake's ``arguments`` without `--configfile` and `--config`, and the values
    (key=value) of `--config`.

    For a run that states both itself: Snakemake reads only the last of each.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--configfile", "--configfiles", nargs="+")
    parser.add_argument("--config", "-C", nargs="*", default=[])
    known, others = parser.parse_known_args(arguments)
    return others, known.config
