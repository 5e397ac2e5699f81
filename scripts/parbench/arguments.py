"""Command lines: types of values for argparse, and Snakemake's as Snakemake reads it."""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import re
from collections.abc import Sequence


def count(text: str) -> int:
    """Return a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def duration(text: str) -> float:
    """Return a finite number of at least 0, of seconds or minutes."""
    number = float(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 0")
    return number


def memory(text: str) -> str:
    """Return an amount of memory as Spark takes it, such as 2g or 512m."""
    if not re.fullmatch("[1-9][0-9]*[mgt]", text):
        raise argparse.ArgumentTypeError(f"{text} is not an amount of memory, such as 2g or 512m")
    return text


def port(text: str) -> int:
    """Return the number of a TCP port that any user may listen at."""
    number = int(text)
    if not 1024 <= number < 65536:
        raise argparse.ArgumentTypeError(f"{text} is not from 1024 to 65535")
    return number


def of_snakemake(words: Sequence[str]) -> argparse.Namespace:
    """Return Snakemake's arguments from the ``words`` of its command line and its profiles.

    Raises SystemExit and snakemake's CliException as Snakemake does, which prints what is wrong.
    """
    from snakemake.cli import parse_args

    silent = io.StringIO()  # it says which profiles it reads, each time
    with contextlib.redirect_stderr(silent), contextlib.redirect_stdout(silent):
        return parse_args(list(words))[1]
