"""Text that others wrote, as it may be shown on a terminal, in HTML and in PDF.

A title, a class's name, a log, a server's answer may hold characters that move a cursor, erase what
stands there, turn the direction of reading, or that no XML may hold. None of them is ever shown.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

LOG_WIDTH = 160  # of a log's line, on a terminal and in the report

# What a terminal obeys: colours and cursor (CSI), titles and links (OSC).
_ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\))")
# Unprintable to Python, but part of how some languages are written.
_JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"


def _is_safe(letter: str) -> bool:
    known = letter.isprintable() or letter in "\n\t" or letter in _JOINERS
    return known or unicodedata.category(letter) == "Zs"  # a blank


def printable(value: Any) -> Any:
    """``value``, a text or JSON that holds some, with nothing in it that must not be shown.

    Escape sequences go; any other such character becomes a replacement character.
    """
    if isinstance(value, str):
        if value.isprintable():  # as nearly every text is
            return value
        text = _ESCAPE.sub("", value)
        return "".join(c if _is_safe(c) else "\N{REPLACEMENT CHARACTER}" for c in text)
    if isinstance(value, dict):
        return {printable(key): printable(part) for key, part in value.items()}
    if isinstance(value, list):
        return [printable(part) for part in value]
    return value


def log_line(line: str) -> str:
    """A line of a log as a terminal shows it in the end, no longer than LOG_WIDTH."""
    line = printable(line.rstrip().rpartition("\r")[2].expandtabs())
    return line if len(line) <= LOG_WIDTH else line[: LOG_WIDTH - 1] + "…"
