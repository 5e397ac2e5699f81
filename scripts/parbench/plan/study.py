"""Define the content of studies/<name>.yaml, which describes a table of a paper as cells."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from parbench.cell import Options
from parbench.plan.configuration import Seeds
from parbench.plan.settings import Assumed, Layer
from parbench.plan.strict_model import (
    Distinct,
    Form,
    Name,
    Names,
    Number,
    Positive,
    StrictModel,
    Whole,
    wrong,
)
from parbench.plan.yaml_file import YamlMapping
from parbench.runs.metrics import METRICS

# Selects published rows: for each column, a value or a list of allowed values.
_Value = str | int | Number
Selection = dict[str, _Value | Annotated[list[_Value], Field(min_length=1)]]
if TYPE_CHECKING:
    Metric = str
else:
    Metric = Literal[tuple(METRICS)]
Values = dict[
    Annotated[str, Form("^[a-z_]+$", "lowercase letters and underscores")],
    Annotated[list[Any], Field(min_length=1)],
]


class Citation(StrictModel):
    """The source of a study."""

    text: str = Field(description="the citation in one line")
    authors: list[str] | None = Field(None, description="names of the authors")
    year: int | None = Field(None, description="year of publication")
    url: Annotated[str, Form("^https://", "an address that begins with https://")] | None = Field(
        None, description="https address of the source"
    )


class Tolerance(StrictModel):
    """How far apart two numbers may be and still count as equal (docs/verdicts.md)."""

    relative: Positive = Field(0.05, description="share of the published value")
    accuracy: Positive = Field(0.01, description="absolute difference of scores")

    def share(self, of_ratios: bool) -> float:
        """Return the tolerance of ratios, or that of scores."""
        return self.relative if of_ratios else self.accuracy


class ModelEntry(StrictModel):
    """A model of the grid."""

    model: str | None = Field(
        None,
        description="a file scripts/parbench/models/<name>.py, or a network of a library, "
        "torchvision/<name> or timm/<name>; default: the name of the entry",
    )
    file: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="instead of `model`: a model file of your own, by its path from this study's "
        "folder (docs/extending.md)",
    )
    options: Options = Field({}, description="options of the model")
    pretrained: bool | str = Field(
        False,
        description="published weights to start from: true takes the entry under `weights` in "
        "config.yaml for this model with these options, a name takes that entry; "
        "default: weights drawn by the seed",
    )
    settings: Layer = Field({}, description="settings for this model only")


class Variant(StrictModel):
    """A strategy on some hardware."""

    strategy: str = Field(description="a file scripts/parbench/strategies/<name>.py")
    models: Names | None = Field(None, description="the models that it trains; default: all")
    options: Options = Field({}, description="options of the strategy")
    hardware: str = Field(description="a name under hardware in config.yaml")
    settings: Layer = Field({}, description="settings for this variant only")
    trained_by: str | None = Field(
        None,
        description="the variant whose weights, with the same seed, this one uses to predict the "
        "test set; this one does not train",
    )
    baseline: str | None = Field(
        None, description="the variant that its speedup is measured against"
    )
    differs: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="how it differs from the source, in a sentence: its numbers are then not "
        "comparable",
    )
    scores_differ: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="like `differs`, for what changes only its scores: its times and memory stay "
        "comparable",
    )
    published: Selection | None = Field(
        None,
        description="which published rows belong to it: for each column, a value or a list of "
        "allowed values",
    )


class Sweep(StrictModel):
    """Variants made from one template."""

    name: str = Field(description="template of their names, such as ddp-$devices-$batch")
    variant: dict[str, Any] = Field(
        description="template of a variant: $key in a text stands for the key's value, and a text "
        "that is only $key becomes the value itself"
    )
    matrix: Values | None = Field(
        None, description="values by key; every combination of them makes a variant"
    )
    zip: Values | None = Field(
        None,
        description="values by key, equally many for each: the first of each make a variant, and "
        "so on",
    )
    compared: bool = Field(
        False, description="true: each takes turns with its baseline, as an entry of `pairs`"
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Sweep:
        if (self.matrix is None) == (self.zip is None):
            raise wrong([], "needs either `matrix` or `zip`")
        counts = {key: len(values) for key, values in (self.zip or {}).items()}
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{key} {count}" for key, count in counts.items())
            raise wrong(["zip"], f"needs equally many values for each key, and has {found}")
        return self

    def combinations(self) -> Iterator[YamlMapping]:
        """Yield the values of each variant, by key."""
        values = self.zip or self.matrix or {}
        combine = zip if self.zip else itertools.product
        for row in combine(*values.values()):
            yield dict(zip(values, row, strict=True))


class Together(StrictModel):
    """Several models, timed until all are trained."""

    models: Annotated[list[str], Field(min_length=2), Distinct] = Field(
        description="models of the study"
    )
    published: Selection = Field(
        {},
        description="overrides a variant's `published`; `model` is their names joined by +",
    )


class VariantPair(StrictModel):
    """Two variants whose times are compared while they take turns on the same devices."""

    variant: str = Field(description="the variant whose speedup is measured")
    baseline: str = Field(
        description="the variant to compare with; the same variant for an A/A pair"
    )
    models: Names | None = Field(
        None,
        description="the models to compare, or rows of `together`, whose models' times add up; "
        "default: every model that both train",
    )
    inference: bool = Field(
        False, description="true: predicting the test set is timed instead of training"
    )


class Pairs(StrictModel):
    """The times that are compared in interleaved pairs."""

    restarts: Whole = Field(
        4, description="number of times that both sides of each pair are started"
    )
    compare: Annotated[list[VariantPair], Field(min_length=1)] = Field(
        description="the pairs to compare"
    )


class Table(StrictModel):
    """A table of the report."""

    title: str = Field(description="heading of the table")
    caption: str | None = Field(None, description="what a reader must know about the table")
    models: Annotated[list[str], Field(min_length=1)] | None = Field(
        None, description="models in the table; default: all"
    )
    variants: Annotated[list[str], Field(min_length=1)] = Field(
        description="rows of each model; a pattern such as ddp-* stands for all that match it"
    )
    metrics: Annotated[list[Metric], Field(min_length=1)] = Field(description="columns")
    units: dict[str, Literal["s", "min", "h", "percent", "fraction"]] | None = Field(
        None, description="units for display, such as {train_seconds: min}"
    )

    def holds(self, model: str, variant: str, several: bool = False) -> bool:
        """Return whether a model and a variant have a row in the table.

        ``several``: the model is an entry of `together`, which has a row only if it is named.
        """
        models = self.models or ([] if several else [model])
        return variant in self.variants and model in models


class Study(StrictModel):
    """A table of a paper, or of several, as models x variants x seeds."""

    title: str = Field(min_length=1, description="heading in the report")
    description: str = Field(description="what is compared and why")
    needs: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="the machine and data that the study needs, in a few words for readers"
    )
    citation: Citation | None = Field(description="the source; null: none")
    published: str | None = Field(
        None,
        description="the source's name in column `study` of a file studies/published/*.csv",
    )
    scaled_from: Name | None = Field(
        None, description="the study at published scale of which this one is a smaller copy"
    )
    claims: Names | None = Field(
        None,
        description="claims of any source, by name in studies/published/claims.yaml, to test at "
        "this study's scale; default: those of its source",
    )
    dataset: str = Field(description="a name under datasets in config.yaml")
    seeds: Seeds = Field(description="distinct seeds; each cell runs once per seed")
    settings: Layer = Field({}, description="settings that the source states or the study chooses")
    assumed: Assumed = Field(
        {},
        description="settings that the source does not state; absolute times are then not "
        "comparable",
    )
    tolerance: Tolerance = Field(
        default_factory=lambda: Tolerance.model_validate({}),
        description="the largest difference that still counts as equal, between a reproduced and "
        "its published number, or two that a claim calls the same (docs/verdicts.md)",
    )
    models: Annotated[dict[str, ModelEntry], Field(min_length=1)] = Field(
        description="models, the rows of the grid"
    )
    variants: Annotated[dict[Name, Variant], Field(min_length=1)] = Field(
        description="variants, the columns of the grid"
    )
    sweep: list[Sweep] = Field([], description="further variants, made from templates")
    together: dict[
        Annotated[
            str,
            Form(
                "^[a-z0-9][a-z0-9_+-]{0,63}$",
                "a name of at most 64 lowercase letters, digits, plus signs, hyphens and "
                "underscores",
            ),
        ],
        Together,
    ] = Field(
        {},
        description="rows for several models, by name: the time until all of them are trained, at "
        "the same time or one after the other",
    )
    pairs: Pairs | None = Field(
        None, description="which times are compared in interleaved pairs; default: none"
    )
    second_device: str | None = Field(
        None,
        description="the variant with a second device: a figure compares its gain with that of "
        "the other variants, all against their baseline",
    )
    tables: Annotated[list[Table], Field(min_length=1)] = Field(
        description="tables of the report, in the shape of the source's"
    )

    def trained(self, variant: str) -> list[str]:
        """Return the models that ``variant`` trains."""
        models = self.variants[variant].models
        return list(self.models) if models is None else models

    def trained_in_both(self, one: str, other: str) -> list[str]:
        """Return the models that both variants train."""
        return [model for model in self.trained(one) if model in self.trained(other)]

    def options(self, entry: Variant) -> Options:
        """Return a variant's strategy options, which override those assumed for the strategy."""
        return {**self.assumed.get("options", {}).get(entry.strategy, {}), **entry.options}

    def members(self, name: str) -> list[str]:
        """Return the models that ``name`` stands for: one model, or an entry of `together`."""
        return self.together[name].models if name in self.together else [name]
