"""Complete options of models and strategies; find published weights for a model's options."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from parbench import models, strategies
from parbench.cell import Model, Options, OptionSchema, Pretrained
from parbench.data import pretrained
from parbench.errors import ParbenchError
from parbench.files import user_path
from parbench.models.libraries import file as model_files
from parbench.plan import places
from parbench.plan.configuration import Weights
from parbench.plan.strict_model import StrictModel, validated
from parbench.plan.study import ModelEntry
from parbench.words import brief


def _stated(kind: str, name: str) -> dict[str, OptionSchema]:
    """Return the JSON schema of each option in the file of a model or strategy, by name."""
    return {"models": models, "strategies": strategies}[kind].load(name).OPTIONS


# The JSON Schema keywords that options use -> pydantic's names.
_LIMITS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "minItems": "min_length",
    "maxItems": "max_length",
    "minProperties": "min_length",
}
_KINDS = {"integer": int, "number": float, "string": str, "boolean": bool}


def _annotation(schema: OptionSchema) -> object:
    """Return the type that an option's JSON schema describes; LookupError for unknown keywords."""
    match schema:
        case {"enum": values}:
            kind = Literal[tuple(values)]
        case {"type": "array"}:
            kind = list[_annotation(schema["items"])]
        case {"type": "object", "additionalProperties": values}:
            kind = dict[str, _annotation(values)]
        case {"type": "object"}:
            kind = dict[str, Any]
        case _:
            kind = _KINDS[schema["type"]]
    about = {"type", "enum", "items", "additionalProperties", "description", "default", "implied"}
    limits = set(schema) - about
    return Annotated[kind, Field(**{_LIMITS[key]: schema[key] for key in limits})]


@functools.cache
def _model(kind: str, name: str) -> type[StrictModel]:
    fields: dict[str, Any] = {
        key: (
            _annotation(schema),
            Field(schema.get("default", ...), description=schema["description"]),
        )
        for key, schema in _stated(kind, name).items()
    }
    return create_model("Options", __base__=StrictModel, **fields)


def all_options(kind: str, name: str, given: Options, where: str) -> Options:
    """Return all options of a model or strategy: the ``given`` ones, and defaults for the others.

    Raises ParbenchError, beginning with ``where``, for an unknown or invalid option.
    """
    validated(_model(kind, name), given, where)
    return {
        key: copy.deepcopy(given[key] if key in given else schema["default"])
        for key, schema in _stated(kind, name).items()
    }


def model_name(name: str, entry: ModelEntry, study: Path) -> str:
    """Return the name that cells use for the model of the entry ``name`` of the file ``study``.

    A model file of the user's own is read. Raises ParbenchError if it cannot be read, or if its
    entry has the name of a model of parbench.
    """
    if entry.file is None:
        return entry.model or name
    key = f"models.{name}.file: {brief(entry.file)}"
    where = f"{places.shown(study)}: {key}"
    if entry.model is not None:
        raise ParbenchError(f"{where}: the entry also has `model`; keep one of the two")
    if models.exists(name):
        raise ParbenchError(f"{where}: {name} is one of parbench's models; rename the entry")
    path = Path(
        os.path.abspath(
            study.parent / user_path(entry.file, f"{places.shown(study)}: models.{name}.file")
        )
    )
    if path.is_dir():
        raise ParbenchError(f"{where}: a folder; name the model's file")
    return model_files.give(name, path, places.shown(study), key)


def model(name: str, entry: ModelEntry, weights: Mapping[str, Weights], study: Path) -> Model:
    """Return a cell's model for the entry ``name`` of the file ``study``.

    It has published weights if the entry asks for them. Raises ParbenchError for invalid options,
    and for weights that do not exist.
    """
    file, where = model_name(name, entry, study), places.shown(study)
    try:
        options = all_options("models", file, entry.options, f"{where}: models.{name}.options")
    except (LookupError, TypeError) as error:
        if entry.file is None:
            raise
        raise ParbenchError(
            f"{where}: models.{name}.file: {brief(entry.file)}: OPTIONS: a schema has a `type` of "
            f"{', '.join(_KINDS)}, array or object, or an `enum`, and limits like those in "
            f"scripts/parbench/models ({brief(str(error))}); correct it"
        ) from None
    chosen_weights = None
    if starts_published(entry):
        keys = f"{where}: models.{name}.pretrained"
        chosen_weights = published_weights(file, options, entry.pretrained, weights, keys)
    return Model(file, models.stated_options(file, options), chosen_weights)


def starts_published(entry: ModelEntry | None) -> bool:
    """Return whether ``pretrained`` of a study's model is true or a name of weights."""
    return entry is not None and entry.pretrained is not False


def published_weights(
    name: str, options: Options, asked: bool | str, weights: Mapping[str, Weights], keys: str
) -> Pretrained:
    """Return the weights of config.yaml that fit the model ``name`` with all its ``options``.

    ``asked``: true, or the weights' name. Raises ParbenchError unless exactly one entry fits.
    """
    defaults = {key: schema.get("default") for key, schema in _stated("models", name).items()}
    entries = {key: entry for key, entry in weights.items() if entry.model == name}
    fitting_names = [
        key
        for key, entry in entries.items()
        if defaults | (entry.options or {}) == options and asked in (True, key)
    ]
    if len(fitting_names) == 1:
        return Pretrained(fitting_names[0], weights[fitting_names[0]].sha256, pretrained.CONVERSION)
    if fitting_names:
        raise ParbenchError(
            f"{keys}: several weights in config.yaml fit this model with these options; name "
            f"one of them instead of true: {brief(', '.join(fitting_names))}"
        )
    choices: list[str] = []
    for key, entry in entries.items():
        theirs = defaults | (entry.options or {})
        differing = [option for option, value in options.items() if theirs[option] != value]
        choices.append(f"{key} (with other {', '.join(differing)})" if differing else key)
    quoted_name = f" {brief(asked)!r}" if isinstance(asked, str) else ""
    raise ParbenchError(
        f"{keys}: config.yaml has no weights{quoted_name} for {name} with these options; it has "
        f"{brief(', '.join(choices), 300) or 'none of this model'}. Add an entry under weights, or "
        "set pretrained: false"
    )
