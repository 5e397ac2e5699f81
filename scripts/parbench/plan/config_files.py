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
from parbench.plan.config_layers import ConfigLayer, ConfigLayers, merged, value_at
from parbench.plan.configuration import Config
from parbench.plan.places import ROOT, shown
from parbench.plan.strict_model import Problem, in_file, problem, read_model
from parbench.plan.study import Study
from parbench.plan.sweep import expanded
from parbench.plan.yaml_file import (
    Key,
    Yaml,
    YamlMapping,
    dotted,
    parsed,
    read_yaml,
    unknown_value,
    words_of,
)
from parbench.words import nearest


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


def arguments(study: str, layers: ConfigLayers) -> list[str]:
    """Return the Snakemake arguments that run ``study`` with what overrides config.yaml.

    They are the same however the user typed the run: paths are relative to the project's folder if
    inside it (``places.shown``), and keys are sorted.
    """
    changes: YamlMapping = {}
    paths: list[str] = []
    for layer in layers.overlays:
        if layer.file is None:
            changes = merged(changes, layer.content)
        else:
            paths.append(shown(os.path.abspath(layer.file)))
    files = list(itertools.dropwhile(lambda path: path == shown(places.CONFIG), paths))
    values = [
        f"{key}={value if isinstance(value, str) else canonical_json(value)}"
        for key, value in sorted(changes.items())
        if key in _DECISIVE
    ]
    overlay = ["--configfile", *files] if files else []
    path = places.study(study)
    named = study if path.is_relative_to(ROOT / places.STUDIES) else canonical_json(str(path))
    return [*overlay, "--config", f"studies=[{named}]", *values]


def read(
    configfiles: Sequence[str | Path] = (),
    changes: YamlMapping | None = None,
    changed_by: str = "--config",
) -> Config:
    """Return config.yaml overridden by ``configfiles``, then by ``changes``.

    Its `studies` are names, even where files give paths. Raises ParbenchError, which names the file
    with the wrong key or, for ``changes``, the text ``changed_by`` (an option or command).
    """
    files = [places.CONFIG, *configfiles]
    layers = [ConfigLayer(shown(file), read_yaml(file), file) for file in files]
    return checked(ConfigLayers((*layers, ConfigLayer(changed_by, changes or {}))))


def checked(layers: ConfigLayers) -> Config:
    """Return the configuration that ``layers`` state. Raises ParbenchError as ``read`` does."""
    named_in = layers.last_that_sets(["studies"])
    where = f"{named_in.name}: studies"
    if named_in.file is None and named_in.name != "--config":  # as in `--study`, it names a study
        where = named_in.name
    stated = layers.merged()
    studies = _by_name(stated.get("studies"), where)
    try:
        result = Config.of(layers, studies)
    except pydantic.ValidationError as error:
        raise ParbenchError(_explained(layers, stated | {"studies": studies}, error)) from None
    locks = places.ROOT / "containers" / "locks"
    stacks = [path.name for path in locks.iterdir() if path.is_dir()]
    if (stack := result.stack) not in stacks:
        raise result.error(["stack"], unknown_value(stack, stacks, "name"))
    return result


def _explained(layers: ConfigLayers, config: YamlMapping, error: pydantic.ValidationError) -> str:
    """Return the message for the ``error`` found in ``config``, naming the layer that causes it."""
    mistake = problem(Config, config, error)
    if emptied := _emptied(layers, config, mistake.keys):
        return emptied
    keys = [*mistake.keys, *([mistake.wrong_key] if mistake.wrong_key else [])]
    kind = [*keys[:2], "kind"]
    # The layers that set the wrong key or value and, of a dataset, its kind.
    of_key, of_kind = layers.last_that_sets(keys), layers.last_that_sets(kind)
    changes_kind = layers.order(of_kind) > layers.order(of_key)
    if mistake.wrong_key and len(keys) == 3 and keys[0] == "datasets" and changes_kind:
        return (
            f"{of_kind.name}: {dotted(kind)}: value {words_of(value_at(config, kind))} does not "
            f"fit: the key `{mistake.wrong_key}` still comes from the entry in {of_key.name}, and "
            "this kind has no such key; use a new name for this dataset"
        )
    return in_file(mistake, of_key.file) if of_key.file else f"{of_key.name}: {mistake}"


def _mistake(config: YamlMapping) -> Problem | None:
    try:
        Config.model_validate(config)
    except pydantic.ValidationError as error:
        return problem(Config, config, error)
    return None


def _emptied(layers: ConfigLayers, config: YamlMapping, keys: list[Key]) -> str | None:
    """Return the message for a file in which a parent key of ``keys`` has no value where a mapping
    is expected; None if there is none.

    The values of earlier files are then lost: ``config`` has only those of later ones.
    """
    for layer in layers.layers:
        if layer.file is None:
            continue
        for count in range(1, len(keys) + 1):
            above = keys[:count]
            is_empty = layer.sets(above) and value_at(layer.content, above) is None
            if is_empty and isinstance(value_at(config, above), dict):
                mistake = _mistake(merged(layers.layers[0].content, layer.content))
                if mistake and mistake.keys == above:
                    return in_file(mistake, layer.file)
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
        path = Path(os.path.abspath(user_path(entry, where)))
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
    if not os.path.lexists(path):  # a link to nothing is named as such when it is read
        raise ParbenchError(
            f"{where}: unknown study {name!r}: there is no {shown(path)}"
            f"{nearest(name, places.studies())}"
        )
    return path


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
