"""Make parts of messages: a value on one short line, a counted noun, a suggestion for a misspelt
name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from parbench.printable import printable

TEXT = "should be text"  # ends the message on a value of another type


def brief(text: str, most: int = 80) -> str:
    """Return ``text`` for a message: on one line, at most ``most`` characters long."""
    line = " ".join(printable(text).split())
    return line if len(line) <= most else line[: most - 3] + "..."


def count(number: int, noun: str) -> str:
    """Return ``1 cell``, ``2 cells``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def nearest(name: str, known: Iterable[str], listed: bool = True) -> str:
    """Return `; did you mean ...?` for a close match, else the ``known`` names if ``listed``."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(sorted(known))}" if listed and known else ""


def plain(message: str) -> str:
    """Return a message of pydantic's without its technical terms."""
    text = re.sub(r"^(Input|String|List|Dictionary) (?=should)", "", message)
    text = text.replace("should be a valid string", TEXT)
    text = re.sub(r"a valid dictionary( or instance of \w+)?", "keys with values", text)
    return re.sub(r" after validation, not \d+$", "", text)
