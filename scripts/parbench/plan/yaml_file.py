"""Read YAML files that users write; errors name file, line, key, value and fix.

A plain value is a number, true, false or null only where YAML 1.1 and 1.2 agree, and 1e-3 is a
number. Where they differ, as on 0123, 4:00:00 and yes, it is an error. Aliases and merge keys
(``<<``) work, tags do not.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, cast

import yaml

from parbench.errors import ParbenchError
from parbench.files import read_text
from parbench.plan.places import shown
from parbench.words import brief, nearest

# Limits on a text, since aliases can unfold to any number of values.
MOST_LEVELS = 50
MOST_VALUES = 100_000

Yaml: TypeAlias = "YamlMapping | list[Yaml] | str | int | float | None"  # a value; bool is an int
YamlMapping: TypeAlias = "dict[str, Yaml]"
Key = str | int
Keys = tuple[Key, ...]  # where a value is: the keys and indices that lead to it

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# PyYAML's stubs leave these without types.
_RESOLVER: Any = yaml.resolver.Resolver()
_PARSE = cast(Any, yaml).parse
_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|nan)", re.IGNORECASE)


def read_yaml(path: str | Path) -> YamlMapping:
    """Read a YAML file that holds a mapping; ParbenchError names the file, the line and the fix."""
    return _read(Path(path))[0]


def as_typed(path: str | Path, keys: Sequence[Key]) -> Scalar | None:
    """Return the number, boolean or null at ``keys`` of a YAML file as it was typed there."""
    return _read(Path(path))[1].get(tuple(keys))


def parsed(text: str, name: str) -> Yaml:
    """Return the value of a YAML text; raise ParbenchError, which calls the text ``name``."""
    return _Document(text, name).value


def _read(path: Path) -> tuple[YamlMapping, dict[Keys, Scalar]]:
    if not os.path.lexists(path):
        raise ParbenchError(f"{shown(path)}: no such file{_sibling(path)}")
    document = _Document(read_text(path, shown(path)), shown(path))
    if document.value is None:
        raise ParbenchError(f"{shown(path)} is empty; expected `key: value` pairs")
    if not isinstance(document.value, dict):
        kind = words_of(document.value)
        raise ParbenchError(f"{shown(path)}: expected `key: value` pairs, not {kind}")
    return document.value, document.scalars


def _sibling(path: Path) -> str:
    """Return a hint: a file with a similar name, or that a ~ was not expanded."""
    if path.parts[0].startswith("~"):
        return "; a shell expands ~ only at the start of a word: write `--configfile ~/...`"
    names = [other.stem for other in path.parent.glob("*") if other.suffix == path.suffix]
    matches = difflib.get_close_matches(path.stem, names, n=1)
    return f"; did you mean {matches[0]}{path.suffix}?" if matches else ""


@dataclass(frozen=True)
class Scalar:
    """A number, boolean or null as it was typed, and its line."""

    typed: str
    line: int


class _Document:
    """A YAML text: its ``value``, and its ``scalars`` (numbers, booleans, nulls) by their keys."""

    def __init__(self, text: str, name: str):
        self._name = name
        # By anchor (None for no anchor): the value and the number of values in it; None while it
        # is being read.
        self._anchored: dict[str | None, tuple[Yaml, int] | None] = {}
        self._count = 0
        self.scalars: dict[Keys, Scalar] = {}
        try:
            events: Iterator[yaml.Event] = _PARSE(text, _Loader)
            self.value = self._document(events)
        except yaml.reader.ReaderError as error:
            line = text.encode()[: error.position].count(b"\n") + 1
            self._fail(line, (), f"not valid YAML: {error.reason}; remove the character")
        except yaml.MarkedYAMLError as error:
            last = text.rstrip("\n").count("\n") + 1  # of text that is left open at the end
            if (mark := error.problem_mark) is None:
                self._fail(last, (), f"not valid YAML: {error.problem}; correct it")
            line, problem = min(mark.line + 1, last), brief(str(error.problem), 300)
            if error.context_mark and error.context_mark.line + 1 < line:
                problem += f" {error.context} that begins on line {error.context_mark.line + 1}"
            begins = text.split("\n")[mark.line :][:1]
            rest = begins[0][mark.column :] if begins else ""
            self._fail(line, (), f"not valid YAML: {problem}; {_remedy(problem, rest)}")

    def _fail(self, line: int, keys: Keys, problem: str) -> NoReturn:
        key = f"{dotted(keys)}: " if keys else ""
        raise ParbenchError(f"{self._name}, line {line}: {key}{problem}")

    def _document(self, events: Iterator[yaml.Event]) -> Yaml:
        value: Yaml = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    line = event.start_mark.line + 1
                    self._fail(line, (), "a second YAML document begins here; keep one")
            elif isinstance(event, yaml.NodeEvent):
                value = self._node(event, events, ())
        return value

    def _node(self, event: yaml.Event, events: Iterator[yaml.Event], keys: Keys) -> Yaml:
        assert isinstance(event, yaml.NodeEvent)
        line, before = event.start_mark.line + 1, self._count
        if isinstance(event, yaml.AliasEvent):
            value, size = self._alias(event.anchor, line, keys)
            self._count += size
        else:
            self._anchored[event.anchor] = None
            value = self._new(event, events, line, keys)
            self._count += 1
            self._anchored[event.anchor] = value, self._count - before
        if self._count > MOST_VALUES:
            problem = f"aliases unfold to more than {MOST_VALUES:,} values; write fewer"
            self._fail(line, keys[:3], problem)
        return value

    def _alias(self, anchor: str, line: int, keys: Keys) -> tuple[Yaml, int]:
        name = brief(anchor)
        if anchor not in self._anchored:
            self._fail(line, keys, f"alias *{name} has no anchor &{name} above it; correct it")
        found = self._anchored[anchor]
        if found is None:
            self._fail(line, keys, f"the alias *{name} refers to itself; remove it")
        return found

    def _new(
        self, event: yaml.NodeEvent, events: Iterator[yaml.Event], line: int, keys: Keys
    ) -> Yaml:
        assert isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent))
        if len(keys) > MOST_LEVELS:
            self._fail(line, keys[:3], f"nested more than {MOST_LEVELS} levels deep; write fewer")
        if event.tag not in (None, "!", "tag:yaml.org,2002:str"):
            self._fail(line, keys, f"the tag {brief(event.tag)} is not supported; remove it")
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, line, keys)
            if not isinstance(value, str):
                self.scalars[keys] = Scalar(event.value, line)
            return value
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(events, keys)
        values: list[Yaml] = []
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            values.append(self._node(item, events, (*keys, len(values))))
        return values

    def _mapping(self, events: Iterator[yaml.Event], keys: Keys) -> YamlMapping:
        values: YamlMapping = {}
        line_by_key: dict[str, int] = {}
        parts: list[Yaml] = []  # the mappings under <<, the first of which counts most
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            key = self._key(event, line, keys)
            if key in line_by_key:
                lines = f"lines {line_by_key[key]} and {line}"
                self._fail(line, keys, f"duplicate key {brief(key)!r} ({lines}); keep one of them")
            line_by_key[key] = line
            value = self._node(next(events), events, (*keys, key))
            if key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
                parts = value if isinstance(value, list) else [value]
            else:
                values[key] = value
        for part in parts:
            if not isinstance(part, dict):
                self._fail(line_by_key["<<"], keys, f"<< takes mappings, not {words_of(part)}")
            values = part | values
        return values

    def _key(self, event: yaml.Event, line: int, keys: Keys) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            self._fail(line, keys, "a key must be text, not a list, a mapping or an alias")
        key = self._scalar(event, line, keys)
        if not isinstance(key, str):
            typed = event.value
            fix = f"put it in quotes: '{typed}'" if typed else "write a name before the colon"
            self._fail(line, keys, f"the key {words_of(key)} is not text; {fix}")
        if not key.isprintable():  # such as a no-break space, which looks like a blank
            problem = f"the key {brief(ascii(key))} holds an invisible character; remove it"
            self._fail(line, keys, problem)
        return key

    def _scalar(self, event: yaml.ScalarEvent, line: int, keys: Keys) -> str | int | float | None:
        typed = event.value
        if "\0" in typed:
            self._fail(line, keys, "the value holds a NUL character; remove it")
        if not event.implicit[0]:  # in quotes, or tagged as text
            return typed
        tag: str = _RESOLVER.resolve(yaml.ScalarNode, typed, (True, False))
        kind = tag.rpartition(":")[2]
        is_number = _WHOLE.fullmatch(typed) or _DECIMAL.fullmatch(typed)
        if _NOT_FINITE.fullmatch(typed) or (is_number and math.isinf(float(typed))):
            problem = f"{brief(typed)} is not a usable number here; give a finite one"
            self._fail(line, keys, problem)
        if is_number:
            return int(typed) if _WHOLE.fullmatch(typed) else float(typed)
        if kind == "null":
            return None
        if kind == "bool" and typed.lower() in ("true", "false"):
            return typed.lower() == "true"
        if kind in ("int", "float", "bool", "timestamp"):
            self._fail(line, keys, _ambiguous(typed, kind))
        return typed


def _remedy(problem: str, rest: str) -> str:
    """Return how to fix a ``problem`` that the YAML parser found where the text ``rest`` begins."""
    if rest.startswith("\t"):
        return "it contains a tab; indent with spaces"
    if rest and "cannot start any token" in problem:
        return f"put text that begins with {rest[0]} in quotes"
    if "mapping values are not allowed" in problem:
        return "put text with a colon and a blank in quotes, and indent keys of one mapping alike"
    return "correct it"


def _ambiguous(typed: str, kind: str) -> str:
    """Return the message for a plain value that not every reader of YAML reads as ``kind``."""
    quoted = f"'{typed}' in quotes if it is text"
    if kind == "timestamp":
        return f"YAML reads {typed} as a date; write {quoted}"
    try:
        made = words_of(yaml.safe_load(typed))
    except ValueError:  # such as 0x_
        made = "a number"
    fix = made if kind == "bool" else "the number in plain digits"
    in_its_unit = " and in the unit of this key" if ":" in typed else ""
    return f"YAML reads {typed} as {made}; write {fix}{in_its_unit}, or {quoted}"


# --- parts of messages ---


def dotted(keys: Sequence[Key]) -> str:
    """Return ``keys`` for a message, joined by dots."""
    return ".".join(brief(str(key)) for key in keys)


def words_of(value: object) -> str:
    """Return ``value`` for a message: short, on one line, a text in quotes."""
    if isinstance(value, str):
        return repr(brief(value))
    return brief(yaml.safe_dump(value, default_flow_style=True, width=10_000).split("\n...")[0])


def missing_key(name: str, description: str | None) -> str:
    """Return the message for a missing key."""
    meaning = f". `{name}`: {description}" if description else ""
    return f"the key {name!r} is missing; add it{meaning}"


def unknown_value(value: object, known: Iterable[str], what: str = "value") -> str:
    """Return the message for a value that is not among the ``known`` ones; ``what`` it is."""
    return f"unknown {what} {words_of(value)}{nearest(str(value), known)}"
