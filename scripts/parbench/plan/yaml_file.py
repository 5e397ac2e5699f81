"""Reads YAML files of users; errors name file, line, key, value and fix."""

from __future__ import annotations

import difflib
import math
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml

from parbench.errors import ParbenchError
from parbench.plan.places import shown
from parbench.words import brief, nearest


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """A safe loader that also rejects duplicate keys (YAML would silently keep the last)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        line_of: dict[Any, Any] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # PyYAML's own message is clear
            if key in line_of:
                name, line = brief(str(key)), key_node.start_mark.line + 1
                raise yaml.MarkedYAMLError(
                    problem=f"the key {name!r} stands twice (line {line_of[key]} and line {line})",
                    problem_mark=key_node.start_mark,
                )
            line_of[key] = key_node.start_mark.line + 1
        return super().construct_mapping(node, deep)


def read_yaml(path: str | Path) -> dict:
    """Read a YAML file that holds a mapping; ParbenchError names the file, the line and the fix."""
    path = Path(path)
    try:
        value = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 (a SafeLoader)
    except FileNotFoundError:
        raise ParbenchError(f"{shown(path)}: no such file{_sibling(path)}") from None
    except OSError as error:
        raise ParbenchError(
            f"{shown(path)}: cannot be read ({error.strerror}); name a file that you may read"
        ) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: from bytes, numbers, dates
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = brief(getattr(error, "problem", None) or str(error), 300)
        raise ParbenchError(
            f"{shown(path)}{line}: not valid YAML: {problem}; mend the file"
        ) from None
    if not isinstance(value, dict):
        raise ParbenchError(f"{shown(path)}: holds {words_of(value)}, not keys with values")
    _check_plain(value, (), shown(path))
    return value


def _check_plain(value: Any, keys: tuple, where: str) -> None:
    """Check that ``value``, at ``keys`` of a file, can be written as JSON."""
    if isinstance(value, (dict, list)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            _check_plain(part, (*keys, key), where)
    elif not isinstance(value, (str, int, float, type(None))):
        kind = type(value).__name__
        raise ParbenchError(
            f"{where}: {dotted(keys)}: {brief(str(value))} is of YAML's type {kind}; put it in "
            "quotes"
        )
    elif isinstance(value, float) and not math.isfinite(value):
        raise ParbenchError(
            f"{where}: {dotted(keys)}: {value} is no number to reckon with; state a finite one"
        )


def _sibling(path: Path) -> str:
    """Return a hint at a file with a similar name."""
    names = [other.name for other in path.parent.glob("*") if other.suffix == path.suffix]
    matches = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


# --- parts of messages ---


def dotted(keys: Sequence) -> str:
    """Return ``keys`` as a message names them."""
    return ".".join(brief(str(key)) for key in keys)


def words_of(value: Any) -> str:
    """Return ``value`` for a message: short, on one line."""
    return brief(yaml.safe_dump(value, default_flow_style=True, width=10_000).split("\n...")[0])


def missing_key(name: str, description: str | None) -> str:
    """Return the message for a missing key."""
    meaning = f" ({description})" if description else ""
    return f"the key {name!r}{meaning} is missing; add it"


def none_of(words: str, known: list[str]) -> str:
    """Return the message for a value, in ``words``, that is not among the ``known`` ones."""
    return f"{words} is not one of {', '.join(known)}{nearest(words, known, listed=False)}"
