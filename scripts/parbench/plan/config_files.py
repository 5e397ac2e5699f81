"""Reads and checks config.yaml and studies/*.yaml; errors name file, key, value and fix."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import pydantic

from parbench.errors import ParbenchError
from parbench.files import canonical_json, user_path
from parbench.plan import places
from parbench.plan.configuration import Config
from parbench.plan.places import ROOT, shown
from parbench.plan.strict_model import Problem, in_file, problem, read_model
from parbench.plan.study import Study
from parbench.plan.sweep import expanded
from parbench.plan.yaml_file import Key, Yaml, YamlMapping, dotted, parsed, read_yaml, words_of
from parbench.words import nearest


def merged(base: YamlMapping, change: YamlMapping) -> YamlMapping:
    """Return ``base`` overridden by ``change``; mappings are merged key by key."""
    result = dict(base)
    for key, value in change.items():
        under = base.get(key)
        if isinstance(value, dict) and isinstance(under, dict):
            value = merged(under, value)
        result[key] = value
    return result


def parse_changes(assignments: Iterable[str]) -> YamlMapping:
    """Return the ``key=value`` arguments of ``--config`` as a mapping; the values are YAML.

    Snakemake's own parser reads values differently from a file: 0123 as 123, and items of lists as
    text. Raises ParbenchError, which names the key.
    """
    values: YamlMapping = {}
    for word in assignments:
        key, found, text = word.partition("=")
        if not found:
            raise ParbenchError(f"--config: {word!r} is not key=value; correct it")
        values = merged(values, {key: parsed(text, f"--config {key}")})
    return values


# Keys of `--config` that decide what a cell is and which cells run. `studies` is written for each
# study separately; other keys, such as time limits, do not affect any result.
_DECISIVE = (
    *("stack", "deployment", "images", "available", "hardware", "datasets", "weights"),
    "override",
)


def arguments(
    study: str, configfiles: Sequence[str | Path] = (), changes: YamlMapping | None = None
) -> list[str]:
    """Return the Snakemake arguments that run ``study`` with these files and ``--config`` values.

    They are the same however the user typed the run: paths are those of ``shown``, keys are sorted.
    """
    paths = [shown(os.path.abspath(file)) for file in configfiles]
    files = list(itertools.dropwhile(lambda path: path == "config.yaml", paths))
    values = [
        f"{key}={value if isinstance(value, str) else canonical_json(value)}"
        for key, value in sorted((changes or {}).items())
        if key in _DECISIVE
    ]
    overlay = ["--configfile", *files] if files else []
    path = places.study(study)
    named = study if path.is_relative_to(ROOT / places.STUDIES) else canonical_json(str(path))
    return [*overlay, "--config", f"studies=[{named}]", *values]


def read(
    configfiles: Sequence[str | Path] = (),
    changes: YamlMapping | None = None,
    option: str = "--config",
) -> Config:
    """Return config.yaml overridden by ``configfiles``, then by ``changes`` (of ``option``).

    Raises ParbenchError for invalid content.
    """
    return checked(merged(load(*configfiles), changes or {}), configfiles, changes, option)


def load(*configfiles: str | Path) -> YamlMapping:
    """Return config.yaml overridden by ``configfiles``, not validated (``checked`` does that)."""
    value = read_yaml(places.ROOT / "config.yaml")
    for file in configfiles:
        value = merged(value, read_yaml(file))
    return value


def checked(
    config: YamlMapping,
    configfiles: Sequence[str | Path] = (),
    changes: YamlMapping | None = None,
    option: str = "--config",
) -> Config:
    """Return ``config``, the merged content of the files, validated, with its studies by name.

    ``configfiles`` and ``changes`` (of ``option``) are what overrides config.yaml. Raises
    ParbenchError, which names the file or option that contains the wrong key.
    """
    where_set = partial(_where_set, configfiles, changes or {}, option)
    named_in = where_set(["studies"])
    where = named_in if named_in == option != "--config" else f"{named_in}: studies"
    config = config | {"studies": _by_name(config.get("studies"), where)}
    try:
        result = Config.model_validate(config)
    except pydantic.ValidationError as error:
        mistake = problem(Config, config, error)
        if emptied := _emptied(config, configfiles, mistake.keys):
            raise ParbenchError(emptied) from None
        keys = [*mistake.keys, *([mistake.last] if mistake.last else [])]
        contents = [changes or {}, *(read_yaml(file) for file in reversed(configfiles))]
        if mistake.last and _changes_kind(contents, keys):
            kind = [*keys[:2], "kind"]
            raise ParbenchError(
                f"{where_set(kind)}: {dotted(kind)}: value {words_of(_value(config, kind))} does "
                f"not fit: the entry keeps {mistake.last!r} of {where_set(keys)}, which this kind "
                "does not have; give the dataset a name of its own"
            ) from None
        if _sets(changes or {}, keys):
            raise ParbenchError(f"{option}: {mistake}") from None
        raise ParbenchError(in_file(mistake, _file_that_sets(configfiles, keys))) from None
    locks = places.ROOT / "containers" / "locks"
    stacks = [path.name for path in locks.iterdir() if path.is_dir()]
    if (stack := result.stack) not in stacks:
        near = nearest(stack, stacks)
        raise ParbenchError(f"{where_set(['stack'])}: stack: unknown value {stack!r}{near}")
    return result.set_by(where_set)


def _mistake(config: YamlMapping) -> Problem | None:
    try:
        Config.model_validate(config)
    except pydantic.ValidationError as error:
        return problem(Config, config, error)
    return None


def _changes_kind(contents: Sequence[YamlMapping], keys: Sequence[Key]) -> bool:
    """Return whether the wrong key of a dataset that ``keys`` lead to fitted its kind before.

    ``contents``: what overrides config.yaml, the last first. One of them then sets a new kind, and
    the key is from below it.
    """
    if len(keys) != 3 or keys[0] != "datasets":
        return False
    for content in contents:
        if _sets(content, keys):
            return False
        if _sets(content, [*keys[:2], "kind"]):
            return True
    return False


def _emptied(config: YamlMapping, configfiles: Sequence[str | Path], keys: list[Key]) -> str | None:
    """Return the message for a file that leaves a key above ``keys`` empty instead of a mapping.

    The values of earlier files are then lost: ``config`` has only those of later ones.
    """
    for file in (places.ROOT / "config.yaml", *configfiles):
        content = read_yaml(file)
        for count in range(1, len(keys) + 1):
            is_empty = _sets(content, keys[:count]) and _value(content, keys[:count]) is None
            if is_empty and isinstance(_value(config, keys[:count]), dict):
                mistake = _mistake(merged(load(), content))
                if mistake and mistake.keys == keys[:count]:
                    return in_file(mistake, file)
    return None


def _by_name(studies: Yaml, where: str) -> Yaml:
    """Return the names of ``studies``, some of which may be paths of files.

    The folders of these files are then searched for studies, published values and claims, too.
    Raises ParbenchError, which begins with ``where``, for a name or path without a study.
    """
    if not isinstance(studies, list):
        return studies
    names: list[Yaml] = []
    folders: list[Path] = []
    for entry in studies:
        if not isinstance(entry, str) or not ("/" in entry or entry.endswith((".yaml", ".yml"))):
            names.append(entry)
            continue
        path = Path(os.path.abspath(user_path(entry)))
        if path.suffix != ".yaml" or not path.is_file():
            raise ParbenchError(
                f"{where}: {entry!r}: no such file; name a study by the path of its .yaml "
                f"file, or one of {', '.join(places.studies())}"
            )
        own = ROOT / places.STUDIES
        if path.parent != own:
            if (own / path.name).exists():
                raise ParbenchError(
                    f"{where}: {entry!r}: parbench already has a study {path.stem!r}; "
                    "rename the file, since results are kept by the study's name"
                )
            folders.append(path.parent)
        names.append(path.stem)
    places.look_in(folders)
    for name in names:
        if isinstance(name, str):
            _require_study(name, where)
    return names


def _require_study(name: str, where: str) -> Path:
    """Return the file of the study ``name``; ParbenchError, which begins with ``where``, without
    one."""
    path = places.study(name)
    if not path.exists():
        raise ParbenchError(
            f"{where}: unknown study {name!r}: there is no {shown(path)}"
            f"{nearest(name, places.studies())}"
        )
    return path


def _where_set(
    configfiles: Sequence[str | Path], changes: YamlMapping, option: str, key: Sequence[Key]
) -> str:
    """Return the name of the file that sets ``key``: the last of config.yaml and ``configfiles``.

    Returns ``option`` if the key is among the ``changes`` given there.
    """
    return option if _sets(changes, key) else shown(_file_that_sets(configfiles, key))


def _file_that_sets(configfiles: Sequence[str | Path], key: Sequence[Key]) -> str | Path:
    first = places.ROOT / "config.yaml"
    return next((file for file in reversed(configfiles) if _sets(read_yaml(file), key)), first)


def _sets(value: Yaml, key: Sequence[Key]) -> bool:
    """Return whether the keys and indices ``key`` lead to a value, which may be null."""
    try:
        _value(value, key)
    except (LookupError, ValueError):
        return False
    return bool(key)


def _value(value: Yaml, key: Sequence[Key]) -> Yaml:
    for part in key:
        if isinstance(value, dict):
            value = value[str(part)]
        elif isinstance(value, list):
            value = value[int(part)]
        else:
            raise KeyError(part)
    return value


def study(name: str) -> Study:
    """Return the study ``name``; raise ParbenchError if it is unknown or its file is invalid."""
    path = _require_study(name, "studies")
    content = read_model(Study, path, partial(expanded, where=shown(path)))
    overlap = sorted(set(content.settings) & set(content.assumed))
    if overlap:
        raise ParbenchError(
            f"{shown(path)}: {overlap[0]!r} is set under both settings and assumed; keep it under "
            "`assumed` if the source does not state it, else under `settings`"
        )
    return content
