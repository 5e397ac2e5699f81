"""Reads YAML that a user wrote: plain values of a sane size, or one sentence with file and line."""

from __future__ import annotations

import difflib
import math
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from parbench.errors import ParbenchError
from parbench.plan.places import shown
from parbench.plan.sentences import dotted, words_of
from parbench.printable import unsafe
from parbench.words import brief

# What a file may hold: nobody's configuration comes near.
MOST_BYTES = 1 << 20  # of a file
MOST_DEPTH = 30  # of mappings and lists in each other
TOO_DEEP = f"more than {MOST_DEPTH} levels of mappings and lists in each other"
MOST_ENTRIES = 1000  # of one mapping or list
MOST_VALUES = 20_000  # in all, an alias counted wherever it stands
MOST_WHOLE = 2**53  # up to here JSON's readers agree on whole numbers
_KINDS = (str, bool, int, float, type(None), dict, list)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """YAML without tags, and without two values for one key (it would keep the last, silently)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen: dict[Any, Any] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # PyYAML's own message is clear
            if key in seen:
                name, line = brief(str(key)), key_node.start_mark.line + 1
                raise yaml.MarkedYAMLError(
                    problem=f"the key {name!r} stands twice (line {seen[key]} and line {line})",
                    problem_mark=key_node.start_mark,
                )
            seen[key] = key_node.start_mark.line + 1
        return super().construct_mapping(node, deep)


def parsed(text: str) -> Any:
    """The value of a YAML text. YAMLError, and ValueError for a number or date that is none."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_DEPTH:  # libyaml's loader would go on until the process has no stack left
            raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=event.start_mark)
    return yaml.load(text, _Loader)  # noqa: S506 (a SafeLoader)


def read_yaml(path: str | Path) -> dict:
    """Read a YAML file that holds a mapping; ParbenchError names the file, the line and the fix."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ParbenchError(
                f"{shown(path)}: more than {MOST_BYTES:,} bytes; name a file of configuration"
            )
        value = parsed(content.decode())
    except FileNotFoundError:
        raise ParbenchError(f"{shown(path)}: no such file{_sibling(path)}") from None
    except OSError as error:
        raise ParbenchError(
            f"{shown(path)}: cannot be read ({error.strerror}); name a file that you may read"
        ) from None
    except UnicodeDecodeError as error:
        raise ParbenchError(
            f"{shown(path)}: not UTF-8 (byte {error.start}); save it as plain UTF-8 text"
        ) from None
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = brief(getattr(error, "problem", None) or str(error), 300)
        raise ParbenchError(
            f"{shown(path)}{line}: not valid YAML: {problem}; mend the file"
        ) from None
    except ValueError as error:  # of a number or a date that is none, such as 2024-13-01
        raise ParbenchError(
            f"{shown(path)}: a value that YAML cannot read ({brief(str(error), 300)}); put it in "
            "quotes"
        ) from None
    check_plain(value, shown(path))
    if not isinstance(value, dict):
        raise ParbenchError(f"{shown(path)}: holds {words_of(value)}, not keys with values")
    return value


def check_plain(value: Any, where: str) -> None:
    """Check that ``value`` is JSON of a sane size and may be shown; ParbenchError names the key.

    Before anything walks through it: an alias of aliases stands for more values than there is
    memory, and one of itself for endlessly many.
    """
    left = MOST_VALUES

    def visit(part: Any, keys: tuple) -> None:
        nonlocal left
        left -= 1
        problem = _not_plain(part)
        if len(keys) > MOST_DEPTH:
            problem = TOO_DEEP
        elif left < 0:
            problem = f"more than {MOST_VALUES:,} values in all, each alias counted as what it is"
        if problem is not None:
            raise ParbenchError(f"{where}: {dotted(keys[:4]) or 'the file'}: {problem}")
        if isinstance(part, dict):
            for key, item in part.items():
                if not isinstance(key, str) or "\n" in key:
                    kind = "more than one line" if isinstance(key, str) else _kind(key)
                    place = f"{dotted(keys)}: " if keys else ""
                    raise ParbenchError(
                        f"{where}: {place}the key {brief(str(key))!r} is {kind}; write it as one "
                        "line of text, in quotes if need be"
                    )
                visit(key, (*keys, key))
                visit(item, (*keys, key))
        elif isinstance(part, list):
            for index, item in enumerate(part):
                visit(item, (*keys, index))

    visit(value, ())


def _not_plain(part: Any) -> str | None:
    """What is wrong with one value by itself, and what mends it; None where nothing is."""
    if not isinstance(part, _KINDS):
        return f"{brief(str(part))} is {_kind(part)}; put it in quotes"
    if isinstance(part, (dict, list)) and len(part) > MOST_ENTRIES:
        return f"{len(part):,} entries; at most {MOST_ENTRIES:,} are read"
    if isinstance(part, float) and not math.isfinite(part):
        return f"{part} is no number to reckon with; state a finite one"
    if isinstance(part, int) and abs(part) > MOST_WHOLE:
        return f"a whole number beyond {MOST_WHOLE:,}; choose a smaller one"
    if isinstance(part, str) and (bad := unsafe(part)):
        return f"{brief(part)} holds the character {bad!a}, which cannot be shown; remove it"
    return None


def _kind(value: Any) -> str:
    """A value's type, for a user."""
    words = {"NoneType": "null", "bool": "true or false", "int": "a number", "float": "a number"}
    name = type(value).__name__
    return words.get(name, f"of YAML's type {name}")


def _sibling(path: Path) -> str:
    """A hint at a file with almost this name."""
    names = [other.name for other in path.parent.glob("*") if other.suffix == path.suffix]
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {close[0]}?" if close else ""
