"""Sentences for what is wrong with a value in a file: its keys, the value, what mends it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from parbench.words import brief, nearest


def dotted(keys: Sequence) -> str:
    """Keys as a message names them."""
    return ".".join(brief(str(key)) for key in keys)


def words_of(value: Any) -> str:
    """A value in a message: short, on one line."""
    return brief(yaml.safe_dump(value, default_flow_style=True, width=10_000).split("\n...")[0])


def unknown_key(way: Sequence, name: str, value: Any, known: Iterable[str]) -> str:
    """Of a key that does not exist."""
    shown = f"unknown key {brief(name)!r} (value {words_of(value)})"
    return f"{_prefix(way)}{shown}{nearest(name, known)}"


def missing_key(way: Sequence, name: str, description: str | None) -> str:
    """Of a key that is not there."""
    meaning = f" ({description})" if description else ""
    return f"{_prefix(way)}the key {name!r}{meaning} is missing; add it"


def none_of(keys: Sequence, value: Any, known: list[str]) -> str:
    """Of a value that is none of a few."""
    near = nearest(str(value), known, listed=False)
    return f"{_prefix(keys)}{words_of(value)} is not one of {', '.join(known)}{near}"


def unfit(keys: Sequence, value: Any, said: str, description: str | None) -> str:
    """Of any other value."""
    meaning = f"; it is: {description}" if description else ""
    return f"{_prefix(keys)}value {words_of(value)}{said}{meaning}"


def _prefix(keys: Sequence) -> str:
    return f"{dotted(keys)}: " if keys else ""
