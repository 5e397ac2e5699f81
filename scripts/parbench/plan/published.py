"""What sources published: rows of studies/published/*.csv, and claims.yaml beside them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import (
    ConfigDict,
    Field,
    PlainValidator,
    RootModel,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from parbench.errors import ParbenchError
from parbench.plan import places
from parbench.plan.model import (
    Distinct,
    Model,
    Problem,
    Whole,
    lacking,
    unwanted,
    validated,
)
from parbench.plan.yaml_file import read_yaml


class Published(pydantic.BaseModel):
    """A row of published values: one number, as its column and in its unit."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=False)

    study: str
    document: str = ""
    table: str
    model: str = ""
    strategy: str = ""
    options: str = ""
    hardware: str
    nodes: int
    devices_per_node: int
    batch_size: str = ""
    precision: str = ""
    metric: str
    value: float
    unit: str
    published_value: str = ""
    published_unit: str = ""
    note: str = ""

    def is_one_of(self, selection: Mapping[str, Any]) -> bool:
        """Whether every column that ``selection`` names has its value, or one of several."""
        return all(
            str(getattr(self, column, None))
            in [str(each) for each in (value if isinstance(value, list) else [value])]
            for column, value in selection.items()
        )


def rows(path: Path, **columns: str) -> Iterator[Published]:
    """The rows of a CSV file whose ``columns`` hold these texts; ParbenchError names the line."""
    with open(path, encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            if all(row.get(key) == text for key, text in columns.items()):
                try:
                    yield Published.model_validate(row)
                except pydantic.ValidationError as error:
                    sentence = Problem(error, Published).sentence()
                    raise ParbenchError(f"{path}: line {number}: {sentence}") from None


# --- claims ---


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _ratio(value: Any) -> Any:
    """A number; or one by model, by model and batch, or by strategy."""
    parts = value.values() if isinstance(value, dict) else [value]
    for part in parts:
        by_batch = isinstance(part, dict) and all(key.isdecimal() for key in part)
        if not all(map(_number, part.values() if by_batch else [part])):
            raise PydanticCustomError(
                "ratio", "should be a number, or numbers by model and batch, or by strategy"
            )
    return value


def _bound(value: Any) -> Any:
    if value != "published" and not (_number(value) and value > 0):
        raise PydanticCustomError("bound", "should be a number above 0, or `published`")
    return value


def _strategies(value: Any) -> Any:
    several = value if isinstance(value, list) else [value]
    if not several or not all(isinstance(each, str) for each in several):
        raise PydanticCustomError("strategies", "should be a name, or a list of names")
    return value


_NUMBERS = {"type": ["number", "object"], "additionalProperties": {"type": "number"}}


class Cells(Model):
    """Which cells; what is not named is free."""

    strategy: Annotated[
        Any,
        PlainValidator(_strategies),
        WithJsonSchema({"type": ["string", "array"], "minItems": 1, "items": {"type": "string"}}),
    ] = Field(None, description="one or several")
    options: dict[str, Any] | None = Field(None, description="of the strategy")
    model: str | None = Field(None, description="a file scripts/parbench/models/<name>.py")
    device: Literal["cpu", "gpu"] | None = Field(None, description="kind of device")
    devices: Whole | None = Field(None, description="on a node")
    nodes: Whole | None = Field(None, description="how many")
    batch_size: Whole | None = Field(
        None, description="samples of one step over all ranks (`global_batch`)"
    )

    @model_validator(mode="after")
    def _selects(self) -> Cells:
        if not self.model_fields_set:
            raise PydanticCustomError("nothing", "should name something")
        return self


class ClaimTest(Model):
    """A metric of the numerator's cells over that of the denominator's: same model, dataset, seed,
    and whatever else neither of the two names."""

    metric: str = Field(
        min_length=1, description="as in tables; of `largest`, what stands before the colon"
    )
    against: str | None = Field(
        None,
        min_length=1,
        description="of `equal`: the metric that it is equal to, in every run",
    )
    numerator: Cells | None = Field(None, description="which cells stand above")
    denominator: Cells | None = Field(None, description="which cells stand below")
    models: Annotated[list[str], Field(min_length=2, max_length=2), Distinct] | None = Field(
        None,
        description="two models: what is judged is the first one's ratio over the second one's",
    )
    op: Literal[">", "<", "within_noise", "report", "largest", "equal"] = Field(
        description="what the ratio must be; `report` only tells it, and `largest` which part of "
        "the metric is the largest"
    )
    value: Annotated[
        Any,
        PlainValidator(_bound),
        WithJsonSchema(
            {"type": ["number", "string"], "exclusiveMinimum": 0, "pattern": "^published$"}
        ),
    ] = Field(None, description="of > and <; `published`: what the claim states")

    @model_validator(mode="after")
    def _fits_its_op(self) -> ClaimTest:
        one_sided, ratio = self.op in (">", "<"), self.op not in ("largest", "equal")
        wanted = {"value": one_sided, "against": self.op == "equal"}
        wanted |= {"numerator": ratio, "denominator": ratio}
        for key, needed in wanted.items():
            if needed and key not in self.model_fields_set:
                raise lacking(key)
        for key, allowed in {**wanted, "models": ratio}.items():
            if not allowed and key in self.model_fields_set:
                raise unwanted(key)
        return self


class Claim(Model):
    """What a source says in words, with what decides it."""

    study: str = Field(description="the source's name in column `study` of the published values")
    claim: str = Field(min_length=1, description="what it says")
    test: ClaimTest | None = Field(
        None,
        description="a metric of the numerator's cells over that of the denominator's: same model, "
        "dataset, seed, and whatever else neither of the two names",
    )
    published: Annotated[Any, PlainValidator(_ratio), WithJsonSchema(_NUMBERS)] = Field(
        None,
        description="the ratio as the source's numbers give it: one number, or one by model, by "
        "model and batch, or by strategy; where it is not stated it is computed from the published "
        "values",
    )
    finding: str | None = Field(
        None,
        description="of a claim without test: the check of scripts/audit.py whose finding "
        "contradicts it",
    )
    audit: str | None = Field(None, description="what the published numbers alone contradict")
    note: str | None = Field(None, description="what a reader must know of the test")

    @model_validator(mode="after")
    def _states_its_number(self) -> Claim:
        tested = "test" in self.model_fields_set and self.test.value == "published"
        if tested and "published" not in self.model_fields_set:
            raise lacking("published")
        return self


class Claims(RootModel[dict[Annotated[str, Field(pattern="^[a-z0-9][a-z0-9-]{0,63}$")], Claim]]):
    """What sources say in words, each claim under a name of its own."""


def claims(path: str | Path) -> dict[str, Claim]:
    """The claims of a file, by name. ParbenchError names file, key, value, fix."""
    return validated(Claims, read_yaml(path), places.shown(path)).root
