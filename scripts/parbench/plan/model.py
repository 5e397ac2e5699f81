"""What every model of a file is made of, and one sentence for what does not fit it."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import pydantic
from pydantic import ConfigDict, Field, RootModel, WrapValidator, create_model
from pydantic_core import PydanticCustomError

from parbench.errors import ParbenchError
from parbench.plan.sentences import dotted, missing_key, none_of, unfit, unknown_key


class Model(pydantic.BaseModel):
    """Closed and strict: no further key, and no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    def stated(self) -> dict:
        """It as its file has it: what is not stated there is left out."""
        # A whole number is as good as 2.0 and stays as it was written.
        return self.model_dump(by_alias=True, exclude_unset=True, warnings=False)


AnyModel = TypeVar("AnyModel", bound=pydantic.BaseModel)


def _unchanged(value: Any, check: Any) -> Any:
    """What was checked, as it was written: pydantic makes 0.0 of 0, which has another digest."""
    check(value)
    return value


def _distinct(value: list) -> list:
    for place, each in enumerate(value):
        if each in value[:place]:
            raise PydanticCustomError("twice", "holds {each} twice", {"each": each})
    return value


AS_WRITTEN = WrapValidator(_unchanged)
Name = Annotated[str, Field(pattern="^[a-z0-9][a-z0-9_-]{0,63}$")]
Whole = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Number = Annotated[float, AS_WRITTEN]
Positive = Annotated[float, Field(gt=0), AS_WRITTEN]
NotNegative = Annotated[float, Field(ge=0), AS_WRITTEN]
Share = Annotated[float, Field(ge=0, lt=1), AS_WRITTEN]
Distinct = pydantic.AfterValidator(_distinct)
Names = Annotated[list[str], Field(min_length=1), Distinct]


def stated_part(name: str, *models: type[Model]) -> type[Model]:
    """A model with the fields of ``models``, any of which may be left out."""
    fields: dict[str, Any] = {}
    for model in models:
        for key, field in model.model_fields.items():
            hidden = (lambda schema: schema.pop("default")) if field.is_required() else None
            default = None if field.is_required() else field.default
            described = Field(default, description=field.description, json_schema_extra=hidden)
            fields[key] = (Annotated[(field.annotation, described, *field.metadata)], described)
    return create_model(name, __base__=Model, __doc__=models[0].__doc__, **fields)


# --- what does not fit ---


def unwanted(key: str) -> PydanticCustomError:
    """The error of a model about a ``key`` of its own that others exclude."""
    return PydanticCustomError("unwanted", "does not belong here", {"key": key})


def lacking(key: str) -> PydanticCustomError:
    """The error of a model about a ``key`` of its own that others ask for."""
    return PydanticCustomError("missing", "is missing", {"key": key})


def wrong(key: str, said: str) -> PydanticCustomError:
    """The error of a model about a ``key`` of its own, dotted where it lies deeper, that is
    ``said`` in a sentence."""
    return PydanticCustomError("value_error", "{said}", {"key": key, "said": said})


def validated(kind: type[AnyModel], value: Any, where: str, keys: tuple = ()) -> AnyModel:
    """``value`` as a ``kind``; ParbenchError begins with ``where``, and names key, value, fix."""
    try:
        return kind.model_validate(value)
    except pydantic.ValidationError as error:
        raise ParbenchError(f"{where}: {Problem(error, kind, value).sentence(keys)}") from None


class Problem:
    """The first of what pydantic found wrong in ``value``: the shallowest, an unknown key before
    all else."""

    def __init__(
        self, error: pydantic.ValidationError, kind: type[pydantic.BaseModel], value: Any
    ) -> None:
        order = {"extra_forbidden": 0, "missing": 1}
        found = min(
            error.errors(include_url=False),
            key=lambda each: (len(each["loc"]), order.get(each["type"], 2)),
        )
        self.type, self.value, self.message = found["type"], found["input"], found["msg"]
        self.path = _keys(found["loc"], value, self.type == "missing")
        if key := found.get("ctx", {}).get("key"):
            self.path += key.split(".")
            self.value = self.value.get(key) if isinstance(self.value, dict) else self.value
        self._siblings, self._description = _field(kind, self.path)

    def sentence(self, keys: tuple = ()) -> str:
        """Key, value, what it is and what mends it; ``keys`` lead to what was checked."""
        path, description = [*keys, *self.path], self._description
        match self.type:
            case "extra_forbidden":
                return unknown_key(path[:-1], str(path[-1]), self.value, self._siblings)
            case "missing":
                return missing_key(path[:-1], path[-1], description)
            case "unwanted":
                return unfit(path, self.value, " does not belong here; remove it", None)
            case "literal_error":
                return none_of(path, self.value, re.findall(r"'([^']*)'", self.message))
            case "value_error":  # a whole sentence of the model's own
                said = self.message.removeprefix("Value error, ")
                return f"{dotted(path)}: {said}" if path else said
        if path[-1:] == ["[key]"]:
            return unfit(path[:-2], self.value, f" as a key {_said(self.message)}", None)
        return unfit(path, self.value, f" {_said(self.message)}", description)


def _keys(place: tuple, value: Any, missing: bool) -> list:
    """The keys of pydantic's ``place`` in ``value``: it names kinds of a union among them. The
    last may be a ``missing`` one."""
    keys = []
    for part in place:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            if part != "[key]" and not (missing and part == place[-1]):
                continue
        keys.append(part)
    return keys


def _said(message: str) -> str:
    """pydantic's words, without what only a programmer knows."""
    said = re.sub(r"^(Input|String|List|Dictionary) (?=should)", "", message)
    said = re.sub(r"a valid dictionary( or instance of \w+)?", "keys with values", said)
    return re.sub(r" after validation, not \d+$", "", said)


def _field(kind: Any, path: list) -> tuple[list[str], str | None]:
    """The keys beside the last one of ``path`` in a ``kind``, and what the last one is."""
    siblings: list[str] = []
    description = None
    for part in path:
        kind = _bare(kind)
        if get_origin(kind) in (dict, list):
            kind = get_args(kind)[-1]
        elif isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
            siblings = list(kind.model_fields)
            field = kind.model_fields.get(part)
            description = field.description if field else None
            kind = field.annotation if field else None
    return siblings, description


def _bare(kind: Any) -> Any:
    """A type without what surrounds it: Annotated, `| None`, the root of a file."""
    while True:
        if isinstance(kind, type) and issubclass(kind, RootModel):
            kind = kind.model_fields["root"].annotation
        elif get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif get_origin(kind) in (Union, types.UnionType):
            several = [_bare(each) for each in get_args(kind) if each is not type(None)]
            models = (each for each in several if isinstance(each, type))
            return next(models, several[0])
        else:
            return kind


# --- schemas ---


def json_schema(kind: type[pydantic.BaseModel], title: str) -> dict:
    """The JSON schema of the file that a ``kind`` describes."""
    schema = _untitled(kind.model_json_schema())
    start = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return {**start, **{key: part for key, part in schema.items() if key != "description"}}


def _untitled(part: Any) -> Any:
    """Without the titles that pydantic makes of names, which say nothing."""
    if isinstance(part, Mapping):
        return {
            key: _untitled(value)
            for key, value in part.items()
            if key != "title" or not isinstance(value, str)
        }
    return [_untitled(each) for each in part] if isinstance(part, list) else part
