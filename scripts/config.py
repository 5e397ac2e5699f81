"""Reads and checks config.yaml and studies/*.yaml: a typo ends with file, key, value, fix.

As a program: checks the files of `--configfile` before Snakemake, whose message for one that is
missing is a traceback, opens them. It takes Snakemake's arguments and ignores all others.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import difflib
import functools
import itertools
import math
import os
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import referencing
import yaml

from errors import ParbenchError, run_main
from files import canonical_json
from printable import printable, unsafe

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = ROOT / "rules" / "schemas"

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


def _parsed(text: str) -> Any:
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
        value = _parsed(content.decode())
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
    _check_plain(value, shown(path))
    if not isinstance(value, dict):
        raise ParbenchError(f"{shown(path)}: holds {_words(value)}, not keys with values")
    return value


def _check_plain(value: Any, where: str) -> None:
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
            raise ParbenchError(f"{where}: {_dotted(keys[:4]) or 'the file'}: {problem}")
        if isinstance(part, dict):
            for key, item in part.items():
                if not isinstance(key, str) or "\n" in key:
                    kind = "more than one line" if isinstance(key, str) else _kind(key)
                    place = f"{_dotted(keys)}: " if keys else ""
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


def _dotted(keys: Sequence) -> str:
    """Keys as a message names them."""
    return ".".join(brief(str(key)) for key in keys)


def brief(text: str, most: int = 80) -> str:
    """``text`` for a message: on one line, and not long."""
    line = " ".join(printable(text).split())
    return line if len(line) <= most else line[: most - 3] + "..."


def shown(path: str | Path) -> str:
    """``path`` as a user types it: from the project's folder where it lies there."""
    path = Path(path)
    return (
        str(path.relative_to(ROOT))
        if path.is_absolute() and path.is_relative_to(ROOT)
        else str(path)
    )


def _sibling(path: Path) -> str:
    """A hint at a file with almost this name."""
    names = [other.name for other in path.parent.glob("*") if other.suffix == path.suffix]
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {close[0]}?" if close else ""


@functools.cache
def schema(name: str) -> dict:
    """rules/schemas/<name>.schema.yaml; the settings of a study are those of a cell."""
    value = read_yaml(SCHEMAS / f"{name}.schema.yaml")
    if name == "study":
        value["$defs"]["settings"]["properties"] = settings_schema()
    return value


def settings_schema() -> dict[str, dict]:
    """What a study may set for its cells: `training`, and how many samples of the dataset."""
    cell = schema("cell")["properties"]
    samples = {k: v for k, v in cell["dataset"]["properties"].items() if k != "name"}
    return {**cell["training"]["properties"], **samples}


def claims(path: str | Path) -> dict[str, dict]:
    """What the sources say in words, by name. ParbenchError names file, key, value, fix."""
    value = read_yaml(path)
    check(value, "claims", shown(path))
    return value


@functools.cache
def modules(kind: str) -> list[str]:
    """Names of the strategies or models: the files of their folder in scripts/."""
    return sorted(path.stem for path in (Path(__file__).parent / kind).glob("[!_]*.py"))


@functools.cache
def _validator(name: str) -> jsonschema.protocols.Validator:
    resources = [
        (f"{other}.schema.yaml", referencing.jsonschema.DRAFT202012.create_resource(schema(other)))
        for other in ("study", "cell", "config")
    ]
    registry = referencing.Registry().with_resources(resources)
    return Validator({"$id": f"{name}.schema.yaml", **schema(name)}, registry=registry)


def check(value: Any, name: str, where: str, keys: tuple = ()) -> None:
    """Check ``value`` by the schema ``name``; ParbenchError begins with ``where`` and the keys."""
    check_by(_validator(name), value, where, keys)


def check_by(
    validator: jsonschema.protocols.Validator, value: Any, where: str, keys: tuple = ()
) -> None:
    """Check ``value`` by ``validator``; ParbenchError names file, key, value, nearest key."""
    error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    if error is None:
        return
    path = [*keys, *error.absolute_path]
    raise ParbenchError(f"{where}: {_explain(error, path, value)}")


# JSON Schema takes 3.0 for a whole number; range() and torch do not.
Validator = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda checker, value: isinstance(value, int) and not isinstance(value, bool)
    ),
)


def _explain(error: jsonschema.ValidationError, path: list, value: Any) -> str:
    key = _dotted(path)
    prefix = f"{key}: " if key else ""
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = list(error.schema.get("properties", {}))
        unknown = [name for name in error.instance if name not in known]
        name = unknown[0]
        return (
            f"{prefix}unknown key {brief(name)!r} (value {_words(error.instance[name])})"
            f"{nearest(name, known)}"
        )
    if error.validator == "not":  # {}: a key that others exclude
        return f"{prefix}does not belong here (value {_words(error.instance)}); remove it"
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        described = error.schema.get("properties", {}).get(missing[0], {}).get("description")
        meaning = f" ({described})" if described else ""
        return f"{prefix}the key {missing[0]!r}{meaning} is missing; add it"
    if error.validator == "enum":
        return (
            f"{prefix}{_words(error.instance)} is not one of "
            f"{', '.join(map(str, error.validator_value))}"
            f"{nearest(str(error.instance), list(map(str, error.validator_value)), listed=False)}"
        )
    described = error.schema.get("description") if isinstance(error.schema, dict) else None
    meaning = f"; it is: {described}" if described else ""
    return f"{prefix}value {_words(error.instance)}: {brief(error.message, 300)}{meaning}"


def nearest(name: str, known: list[str], listed: bool = True) -> str:
    """; did you mean ...? where something is near, else what there is."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(sorted(known))}" if listed and known else ""


def _words(value: Any) -> str:
    """A value in a message: short, on one line."""
    return brief(yaml.safe_dump(value, default_flow_style=True, width=10_000).split("\n...")[0])


def merged(base: dict, change: dict) -> dict:
    """``base`` with ``change`` laid over it, mappings key by key, as --configfile does it."""
    result = copy.deepcopy(base)
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def typed(changes: Mapping) -> dict:
    """The values of ``--config`` as YAML reads them; Snakemake leaves those in lists as text.

    So `--config 'override={quickstart: {seeds: [0]}}'` means what it would in a file.
    ParbenchError for what no file may hold either.
    """
    changes = dict(changes)
    _check_plain(changes, "--config")
    return _typed(changes)


def _typed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _typed(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_typed(part) for part in value]
    if isinstance(value, str):
        with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):
            read = _parsed(value)
            return read if isinstance(read, (bool, int, float, type(None))) else value
    return value


# Keys of `--config` that decide what a cell is. `studies` is said for each study by itself; what is
# left, as a time limit, changes no number.
_DECISIVE = ("stack", "hardware", "datasets", "weights", "override")


def arguments(
    study: str, configfiles: Sequence[str | Path] = (), changes: dict | None = None
) -> list[str]:
    """Snakemake's words that ask for ``study`` as a run with these files and ``--config`` does.

    The same however the run was typed: paths are those that ``shown`` gives, keys are sorted.
    """
    names = [shown(os.path.abspath(file)) for file in configfiles]
    files = list(itertools.dropwhile(lambda name: name == "config.yaml", names))
    values = [
        f"{key}={changes[key] if isinstance(changes[key], str) else canonical_json(changes[key])}"
        for key in sorted(changes or {})
        if key in _DECISIVE
    ]
    overlay = ["--configfile", *files] if files else []
    return [*overlay, "--config", f"studies=[{study}]", *values]


def load(*configfiles: str | Path) -> dict:
    """config.yaml with ``configfiles`` laid over it; unchecked (see checked)."""
    value = read_yaml(ROOT / "config.yaml")
    for file in configfiles:
        value = merged(value, read_yaml(file))
    return value


def checked(
    config: dict, configfiles: list[str | Path] | None = None, changes: dict | None = None
) -> dict:
    """``config`` if it is right; ParbenchError names the file that holds the wrong key.

    ``changes`` (of ``--config``) are what of it stands in no file.
    """
    files = [Path(file) for file in configfiles or [ROOT / "config.yaml"]]
    changes = changes or {}
    _check_plain(changes, "--config")
    _check_plain(config, "the configuration")
    error = jsonschema.exceptions.best_match(_validator("config").iter_errors(config))
    if error is not None:
        path = list(error.absolute_path)
        key = path
        if error.validator == "additionalProperties" and isinstance(error.instance, dict):
            known = error.schema.get("properties", {})
            key = [*path, next(name for name in error.instance if name not in known)]
        where = "--config" if _holds(changes, key) else holder(files, key)
        raise ParbenchError(f"{where}: {_explain(error, path, config)}")
    for name, spec in config["datasets"].items():
        key = ["datasets", name]
        where = "--config" if _holds(changes, key) else holder(files, key)
        check_by(_dataset_validator(), spec, where, ("datasets", name))
    _check_images(config["images"], files)
    return config


def _check_images(images: dict, files: list[Path]) -> None:
    """What would otherwise be left unread, or fail after minutes of building."""
    given, arguments = images["given"], images["arguments"]
    recipes = sorted(path.stem for path in (ROOT / "containers").glob("*.def"))
    for name in given:
        if name not in recipes:
            where = holder(files, ["images", "given", name])
            near = nearest(name, recipes)
            raise ParbenchError(
                f"{where}: images.given.{name}: containers/ has no {name}.def{near}"
            )
    docker = arguments.get("bootstrap") == "docker"
    problem = None
    if docker and "from" not in arguments:
        key, problem = "bootstrap", "docker needs `from`, an image of a registry by its digest"
    elif "from" in arguments and not docker:
        key, problem = "from", "is read with bootstrap: docker alone; add it, or take this out"
    elif (
        arguments.get("gpu") == "nccl"
        and not docker
        and not {"base", "torch", "horovod"} & {*given}
    ):
        key = "gpu"
        problem = "nccl needs a CUDA development image as base: bootstrap: docker and `from`"
    if problem:
        where = holder(files, ["images", "arguments", key])
        raise ParbenchError(f"{where}: images.arguments.{key}: {problem} (docs/images.md)")


@functools.cache
def _dataset_validator() -> jsonschema.protocols.Validator:
    return Validator(schema("dataset"))


def holder(files: list[Path], key: list) -> str:
    """The name of the last of ``files`` that holds ``key``: it is the one that counts."""
    for file in reversed(files):
        if file.exists() and _holds(read_yaml(file), key):
            return shown(file)
    return shown(files[0]) if not key or len(files) == 1 else "--config or --configfile"


def _holds(value: Any, key: list) -> bool:
    """Whether the keys and indices ``key`` lead to something in ``value``."""
    for part in key:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return False
    return bool(key) and value is not None


def study(name: str) -> dict:
    """studies/<name>.yaml, checked; ParbenchError for an unknown study or a wrong file."""
    path = ROOT / "studies" / f"{name}.yaml"
    if not path.exists():
        known = sorted(file.stem for file in (ROOT / "studies").glob("*.yaml"))
        raise ParbenchError(
            f"studies: unknown study {name!r}: there is no {shown(path)}{nearest(name, known)}"
        )
    value = read_yaml(path)
    check(value, "study", shown(path))
    both = sorted(set(value.get("settings", {})) & set(value.get("assumed", {})))
    if both:
        raise ParbenchError(
            f"{shown(path)}: {both[0]!r} stands under settings and under assumed; keep it under "
            "`assumed` if the source leaves it open, else under `settings`"
        )
    return value


def main() -> None:
    """The command line."""
    # No abbreviations: --config is another option. No help: that is Snakemake's to give.
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--configfile", "--configfiles", nargs="+", action="append", default=[])
    given = parser.parse_known_args()[0].configfile
    if len(given) > 1:
        names = " ".join(itertools.chain(*given))
        raise ParbenchError(
            "--configfile stands twice, and Snakemake reads the last one's files alone; name all "
            f"after one: --configfile {names}; with make gpu-evidence, say ARGS=<file>"
        )
    for file in itertools.chain(*given):
        read_yaml(file)


if __name__ == "__main__":
    run_main(main)
