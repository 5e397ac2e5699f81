"""What sources published: rows of studies/published/*.csv, and claims.yaml beside them."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, RootModel, model_validator
from pydantic_core import PydanticCustomError

from parbench.plan import places
from parbench.plan.model import (
    Distinct,
    Model,
    Names,
    Number,
    Positive,
    Whole,
    lacking,
    unwanted,
    validated,
)
from parbench.plan.yaml_file import read_yaml


def rows(study: str) -> list[dict[str, str]]:
    """The published values of the source ``study``, by column, as they are written."""
    found = []
    for path in places.published_files():
        with open(path, encoding="utf-8", newline="") as file:
            found += [row for row in csv.DictReader(file) if row["study"] == study]
    return found


def is_one_of(row: Mapping[str, str], selection: Mapping[str, Any]) -> bool:
    """Whether every column that ``selection`` names has its value, or one of several."""
    return all(
        row.get(column) in [str(each) for each in (value if isinstance(value, list) else [value])]
        for column, value in selection.items()
    )


# --- claims ---


class Cells(Model):
    """Which cells; what is not named is free."""

    strategy: str | Names | None = Field(None, description="one or several")
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
    value: Positive | Literal["published"] | None = Field(
        None, description="of > and <; `published`: what the claim states"
    )

    @model_validator(mode="after")
    def _fits_its_op(self) -> ClaimTest:
        one_sided, ratio = self.op in (">", "<"), self.op not in ("largest", "equal")
        wanted = {"value": one_sided, "against": self.op == "equal"}
        wanted |= {"numerator": ratio, "denominator": ratio}
        for key, needed in wanted.items():
            if needed and getattr(self, key) is None:
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
    published: Number | dict[str, Number | dict[str, Number]] | None = Field(
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
