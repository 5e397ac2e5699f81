"""Types of numbers on the command lines of programs, for argparse."""

from __future__ import annotations

import argparse
import math


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
