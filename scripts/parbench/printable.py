"""Make text from elsewhere safe to show on a terminal, in HTML and in PDF.

A title, a class name, a log or a server's answer may contain characters that move the cursor, erase
text, reverse the reading direction or are invalid in XML. None of them is ever shown.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

LOG_WIDTH = 160  # characters of a log line, on a terminal and in the report

# Escape sequences: colors and cursor (CSI), titles and links (OSC).
_ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\))")
# A user name, and a password or token, in an address.
_CREDENTIALS = re.compile(r"(?<=://)[^/\s]+(?=@)")
# Unprintable according to Python, but needed to write some languages.
_JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"


def _is_safe(letter: str) -> bool:
    usual = letter.isprintable() or letter in "\n\t" or letter in _JOINERS
    return usual or unicodedata.category(letter) == "Zs"  # a blank


def printable(value: Any) -> Any:
    """Return ``value``, a string or JSON value, with all strings made safe to show.

    Removes escape sequences and masks credentials in addresses; any other unsafe character becomes
    a replacement character.
    """
    if isinstance(value, str):
        value = masked(value)
        if value.isprintable():  # the common case
            return value
        text = _ESCAPE.sub("", value)
        return "".join(
            letter if _is_safe(letter) else "\N{REPLACEMENT CHARACTER}" for letter in text
        )
    if isinstance(value, dict):
        return {printable(key): printable(part) for key, part in value.items()}
    if isinstance(value, list):
        return [printable(part) for part in value]
    return value


def masked(text: str) -> str:
    """Return ``text`` with **** for user names, passwords and tokens in addresses."""
    return _CREDENTIALS.sub("****", text) if "://" in text else text


def log_line(line: str) -> str:
    """Return a log line as a terminal would finally show it, cut to LOG_WIDTH."""
    line = printable(line.rstrip().rpartition("\r")[2].expandtabs())
    return line if len(line) <= LOG_WIDTH else line[: LOG_WIDTH - 1] + "…"
