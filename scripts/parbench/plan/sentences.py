"""Sentences for what is wrong with a value in a file: its keys, the value, what mends it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from parbench.words import brief, nearest


def dotted(keys: Sequence) -> str:
    """Keys as a message names them."""
    return ".".join(brief(str(key)) for key in keys)


def words_of(value: Any) -> str:
    """A value in a message: short, on one line."""
    return brief(yaml.safe_dump(value, default_flow_style=True, width=10_000).split("\n...")[0])


def missing_key(name: str, description: str | None) -> str:
    """Of a key that is not there."""
    meaning = f" ({description})" if description else ""
    return f"the key {name!r}{meaning} is missing; add it"


def none_of(words: str, known: list[str]) -> str:
    """Of a value, in ``words``, that is none of a few."""
    return f"{words} is not one of {', '.join(known)}{nearest(words, known, listed=False)}"
