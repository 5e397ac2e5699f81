"""Checks files of results by their JSON schemas."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from parbench.errors import ParbenchError
from parbench.plan import places
from parbench.plan.sentences import missing_key, none_of, unfit, unknown_key
from parbench.plan.yaml_file import read_yaml
from parbench.words import brief

if TYPE_CHECKING:
    import jsonschema


@functools.cache
def schema(name: str) -> dict:
    """rules/schemas/<name>.schema.yaml."""
    return read_yaml(places.SCHEMAS / f"{name}.schema.yaml")


@functools.cache
def _validator(name: str) -> jsonschema.protocols.Validator:
    import jsonschema  # takes half a second, and no plan needs it

    return jsonschema.Draft202012Validator(schema(name))


def check(value: Any, name: str, where: str) -> None:
    """Check ``value`` by the schema ``name``; ParbenchError names ``where``, key, value."""
    from jsonschema.exceptions import best_match

    error = best_match(_validator(name).iter_errors(value))
    if error is not None:
        raise ParbenchError(f"{where}: {_explain(error, list(error.absolute_path))}")


def _explain(error: jsonschema.ValidationError, path: list) -> str:
    value = error.instance
    if error.validator == "additionalProperties" and isinstance(value, dict):
        known = list(error.schema.get("properties", {}))
        name = next(key for key in value if key not in known)
        return unknown_key(path, name, value[name], known)
    if error.validator == "required":
        name = next(key for key in error.validator_value if key not in value)
        described = error.schema.get("properties", {}).get(name, {}).get("description")
        return missing_key(path, name, described)
    if error.validator == "enum":
        return none_of(path, value, [str(each) for each in error.validator_value])
    described = error.schema.get("description") if isinstance(error.schema, dict) else None
    return unfit(path, value, f": {brief(error.message, 300)}", described)
