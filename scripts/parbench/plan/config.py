"""config.yaml and studies/*.yaml, read and checked: a typo ends with file, key, value, fix."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pydantic
import yaml

from parbench.cell import Hardware
from parbench.data import source
from parbench.errors import ParbenchError
from parbench.files import canonical_json
from parbench.plan import places
from parbench.plan.configuration import Config, HardwareEntry
from parbench.plan.model import Problem, validated
from parbench.plan.places import ROOT, shown  # noqa: F401 (ROOT: for the rules)
from parbench.plan.sentences import missing_key, none_of
from parbench.plan.study import Study
from parbench.plan.yaml_file import read_yaml
from parbench.words import nearest


def merged(base: dict, change: dict) -> dict:
    """``base`` with ``change`` laid over it, mappings key by key, as --configfile does it."""
    result = dict(base)
    for key, value in change.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        result[key] = merged(base[key], value) if both else value
    return result


def typed(value: Any) -> Any:
    """A value of ``--config`` as YAML reads it; Snakemake leaves those in lists as text.

    So `--config 'override={quickstart: {seeds: [0]}}'` means what it would in a file.
    """
    if isinstance(value, dict):
        return {key: typed(part) for key, part in value.items()}
    if isinstance(value, list):
        return [typed(part) for part in value]
    if isinstance(value, str):
        with contextlib.suppress(yaml.YAMLError, ValueError):
            read = yaml.safe_load(value)
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
    value = read_yaml(places.ROOT / "config.yaml")
    for file in configfiles:
        value = merged(value, read_yaml(file))
    return value


def checked(
    config: dict, configfiles: list[str | Path] | None = None, changes: dict | None = None
) -> dict:
    """``config`` if it is right; ParbenchError names the file that holds the wrong key.

    ``changes`` (of ``--config``) are what of it stands in no file.
    """
    files = [Path(file) for file in configfiles or [places.ROOT / "config.yaml"]]
    changes = changes or {}

    def where(key: list) -> str:
        return "--config" if _holds(changes, key) else holder(files, key)

    try:
        Config.model_validate(config)
    except pydantic.ValidationError as error:
        problem = Problem(error, Config, config)
        gone = problem.type == "missing" or problem.path[-1] == "[key]"
        key = problem.path[:-1] if gone else problem.path
        raise ParbenchError(f"{where(key)}: {problem.sentence()}") from None
    for name, spec in config["datasets"].items():
        _check_dataset(name, spec, where(["datasets", name]))
    return config


def _check_dataset(name: str, spec: dict, where: str) -> None:
    """An entry of ``datasets`` by its kind's own class; ParbenchError names file and key."""
    keys = ("datasets", name)
    if "kind" not in spec:
        raise ParbenchError(f"{where}: {missing_key(keys, 'kind', 'where its images come from')}")
    if spec["kind"] not in source.kinds():
        raise ParbenchError(f"{where}: {none_of((*keys, 'kind'), spec['kind'], source.kinds())}")
    validated(source.load(spec["kind"]), spec, where, keys)


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


def study(name: str) -> Study:
    """studies/<name>.yaml, checked; ParbenchError for an unknown study or a wrong file."""
    path = places.ROOT / "studies" / f"{name}.yaml"
    if not path.exists():
        known = sorted(file.stem for file in path.parent.glob("*.yaml"))
        raise ParbenchError(
            f"studies: unknown study {name!r}: there is no {shown(path)}{nearest(name, known)}"
        )
    read = validated(Study, read_yaml(path), shown(path))
    both = sorted(set(read.settings) & set(read.assumed))
    if both:
        raise ParbenchError(
            f"{shown(path)}: {both[0]!r} stands under settings and under assumed; keep it under "
            "`assumed` if the source leaves it open, else under `settings`"
        )
    return read


def hardware(name: str, config: dict) -> Hardware:
    """What a cell runs on, for a name in config.yaml."""
    return HardwareEntry.model_validate(config["hardware"][name]).called(name)
