"""Define the base of all pydantic models of files, and one-sentence errors for invalid values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import pydantic
from pydantic import (
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from parbench.errors import ParbenchError
from parbench.plan.places import shown
from parbench.plan.yaml_file import (
    Key,
    YamlMapping,
    as_typed,
    dotted,
    missing_key,
    read_yaml,
    unknown_value,
    words_of,
)
from parbench.words import TEXT, brief, nearest, plain


class StrictModel(pydantic.BaseModel):
    """Base of all pydantic models of files: unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    @model_validator(mode="wrap")
    @classmethod
    def _explained(cls, value: object, check: Callable[[object], Self]) -> Self:
        return explained(cls, value, check)

    def stated(self) -> dict[str, Any]:
        """Return the model's content as written in its file, without defaults."""
        # warnings=False: pydantic would warn of 2 in a float field, which stays as written.
        return self.model_dump(by_alias=True, exclude_unset=True, warnings=False)

    def missing(self, key: str) -> PydanticCustomError:
        """Return the error for a missing ``key`` that other keys require."""
        return wrong([], missing_key(key, type(self).model_fields[key].description))

    def unwanted(self, key: str, cause: str) -> PydanticCustomError:
        """Return the error for a ``key`` that must not be set because of ``cause``, the text of
        another setting."""
        value = words_of(self.stated()[key])
        return wrong([key], f"value {value} cannot be combined with {cause}; remove it")


AnyModel = TypeVar("AnyModel", bound=pydantic.BaseModel)


def _unchanged(value: float, check: Callable[[float], float]) -> float:
    """Check ``value`` but return it as written: pydantic turns 0 into 0.0, changing digests."""
    check(value)
    return value


def _distinct(value: list[object]) -> list[object]:
    for index, item in enumerate(value):
        if item in value[:index]:
            raise PydanticCustomError("twice", "contains {each} twice", {"each": item})
    return value


AS_WRITTEN = WrapValidator(_unchanged)


@dataclass(frozen=True)
class Form:
    """Metadata of a text's type: a ``pattern``, and what it accepts in ``words``, for messages."""

    pattern: str
    words: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the schema of a text that is checked for its type, then for its form."""
        shaped = core_schema.custom_error_schema(
            core_schema.str_schema(pattern=self.pattern),
            "form",
            custom_error_message="should be {words}",
            custom_error_context={"words": self.words},
        )
        return core_schema.chain_schema([handler(source), shaped])

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the JSON schema of such a text, with the pattern."""
        return {**handler(schema), "pattern": self.pattern}


NAME = "[a-z0-9][a-z0-9_-]{0,63}"
Name = Annotated[
    str,
    Form(f"^{NAME}$", "a name of at most 64 lowercase letters, digits, hyphens and underscores"),
]
Sha256 = Annotated[str, Form("^[0-9a-f]{64}$", "64 hexadecimal digits, in lower case")]
Whole = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Number = Annotated[float, AS_WRITTEN]
Positive = Annotated[float, Field(gt=0), AS_WRITTEN]
NotNegative = Annotated[float, Field(ge=0), AS_WRITTEN]
Share = Annotated[float, Field(ge=0, lt=1), AS_WRITTEN]
Distinct = pydantic.AfterValidator(_distinct)
Names = Annotated[list[str], Field(min_length=1), Distinct]


def _drop_default(schema: JsonDict) -> None:
    del schema["default"]


def with_optional_fields(kind: type[StrictModel]) -> type[StrictModel]:
    """Return a base class with the fields of the pydantic model ``kind``, all of them optional."""
    fields: dict[str, Any] = {}
    for key, field in kind.model_fields.items():
        drop_default = _drop_default if field.is_required() else None
        default = None if field.is_required() else field.default
        field_info = Field(default, description=field.description, json_schema_extra=drop_default)
        fields[key] = (Annotated[(field.annotation, field_info, *field.metadata)], field_info)
    return create_model(kind.__name__, __base__=StrictModel, **fields)


# --- errors ---


@dataclass(frozen=True)
class Problem:
    """An error in a file: a ``sentence`` on the value at ``keys``.

    ``wrong_key``: the key there that is unknown or not allowed, if the value is not the problem.
    """

    keys: list[Key]
    sentence: str
    wrong_key: str | None = None

    def __str__(self) -> str:
        """Return the message, such as ``hardware.cpu2: unknown key 'device_count' ...``."""
        return f"{dotted(self.keys)}: {self.sentence}" if self.keys else self.sentence


def wrong(keys: list[Key], sentence: str, wrong_key: str | None = None) -> PydanticCustomError:
    """Return the error that a model or validator raises for a Problem."""
    return PydanticCustomError(
        "explained", "{sentence}", {"keys": keys, "sentence": sentence, "wrong_key": wrong_key}
    )


def explained(kind: type[AnyModel], value: object, check: Callable[[object], AnyModel]) -> AnyModel:
    """Return ``check(value)``; of all validation errors of ``kind``, raise one, in plain words."""
    try:
        return check(value)
    except pydantic.ValidationError as error:
        mistake = problem(kind, value, error)
        raise wrong(mistake.keys, mistake.sentence, mistake.wrong_key) from None


def validated(
    kind: type[AnyModel], value: object, where: str, of_any_version: bool = False
) -> AnyModel:
    """Return ``value`` as a ``kind``.

    ``of_any_version``: ignore unknown keys, since another version of parbench may have written the
    file. Raises ParbenchError, which begins with ``where`` and names key, value and fix.
    """
    lenient: Any = {"strict": False, "extra": "ignore"} if of_any_version else {}
    try:
        return kind.model_validate(value, **lenient)
    except pydantic.ValidationError as error:
        raise ParbenchError(f"{where}: {problem(kind, value, error)}") from None


def read_model(
    kind: type[AnyModel],
    path: str | Path,
    prepare: Callable[[YamlMapping], YamlMapping] = lambda content: content,
) -> AnyModel:
    """Return the content of a YAML file, after ``prepare`` has transformed it, as a ``kind``.

    Raises ParbenchError, which names file, key, value and fix.
    """
    value = prepare(read_yaml(path))
    try:
        return kind.model_validate(value)
    except pydantic.ValidationError as error:
        raise ParbenchError(in_file(problem(kind, value, error), path)) from None


def in_file(mistake: Problem, path: str | Path) -> str:
    """Return the message for a ``mistake`` in a YAML file, with its line if YAML read the value as
    another type than intended."""
    scalar = None if mistake.wrong_key else as_typed(path, mistake.keys)
    if scalar is not None and not scalar.typed:  # as in `slurm:`
        sentence = "has no value; write one"
        return f"{shown(path)}, line {scalar.line}: {dotted(mistake.keys)}: {sentence}"
    what, _, meaning = mistake.sentence.partition("; `")
    if scalar is not None and what.endswith(TEXT):
        sentence = f"{what}; write it in quotes: '{scalar.typed}'" + (meaning and f". `{meaning}")
        return f"{shown(path)}, line {scalar.line}: {replace(mistake, sentence=sentence)}"
    return f"{shown(path)}: {mistake}"


def problem(
    kind: type[pydantic.BaseModel], value: object, error: pydantic.ValidationError
) -> Problem:
    """Return the one of pydantic's errors that is closest to the root of ``value``; of several,
    preferably one of an unknown key."""
    problems = [_problem(kind, value, item) for item in error.errors(include_url=False)]
    return min(problems, key=lambda item: (len(item.keys), item.wrong_key is None))


def _problem(kind: type[pydantic.BaseModel], value: object, found: ErrorDetails) -> Problem:
    """Return one pydantic error as a Problem; errors of nested models already are Problems."""
    place, text, message = found["loc"], words_of(found["input"]), found["msg"]
    keys = _keys(place, value)
    match found["type"]:  # any other type is explained below
        case "explained":
            context = found.get("ctx", {})
            return Problem([*keys, *context["keys"]], context["sentence"], context["wrong_key"])
        case "extra_forbidden":
            key, above = str(place[-1]), _keys(place[:-1], value)
            known = nearest(key, _fields_at(kind, above))
            return Problem(above, f"unknown key {brief(key)!r} (value {text}){known}", key)
        case "missing":
            key, above = str(place[-1]), _keys(place[:-1], value)
            field = _fields_at(kind, above).get(key)
            return Problem(above, missing_key(key, field.description if field else None))
        case "literal_error":
            return Problem(keys, unknown_value(found["input"], re.findall(r"'([^']*)'", message)))
        case "string_pattern_mismatch":  # words, not the regular expression
            message = "does not have the expected form"
        case "value_error":  # the model's own full sentence
            return Problem(keys, message.removeprefix("Value error, "))
        case _:
            pass
    if place[-1:] == ("[key]",):
        return Problem(keys[:-1], f"the key {text} {plain(message)}", str(place[-2]))
    field = kind.model_fields.get(str(keys[0])) if keys else None
    meaning = f"; `{keys[0]}`: {field.description}" if field and field.description else ""
    return Problem(keys, f"value {text} {plain(message)}{meaning}")


def _fields_at(kind: type[pydantic.BaseModel], keys: Sequence[Key]) -> dict[str, FieldInfo]:
    """Return the fields of the model that ``keys`` of a ``kind`` lead to; none if it is not one."""
    for key in keys:
        field = kind.model_fields.get(str(key))
        below = field.annotation if field else None
        if not (isinstance(below, type) and issubclass(below, pydantic.BaseModel)):
            return {}
        kind = below
    return kind.model_fields


def _keys(place: tuple[Key, ...], value: Any) -> list[Key]:
    """Return the keys in pydantic's location ``place``, without the union tags among them."""
    keys: list[Key] = []
    for key in place:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            continue
        keys.append(key)
    return keys
