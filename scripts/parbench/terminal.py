"""Print text and tables on a terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from parbench.printable import printable


def print_text(text: str) -> None:
    """Print ``text``, even on a terminal that cannot show ±."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    print(printable(text))


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines as columns two spaces apart; the first line is the header.

    The last field of a line with fewer fields may extend into the next columns.
    """
    columns = len(lines[0])
    widths = [
        max(len(line[i]) for line in lines if i < len(line) - 1 or len(line) == columns)
        for i in range(columns)
    ]
    padded = []
    for line in lines:
        fields = [field.ljust(width) for field, width in zip(line[:-1], widths, strict=False)]
        padded.append("  ".join([*fields, line[-1]]).rstrip())
    return [padded[0], "-" * max(map(len, padded)), *padded[1:]]
