"""Models of studies/<name>.yaml, which states a table of a paper as cells."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from parbench.measure.metrics import METRICS
from parbench.plan.configuration import Seeds
from parbench.plan.model import Distinct, Model, Name, Names, Number, Positive, Whole
from parbench.plan.settings import Assumed, Layer

# Selects published rows: column = value, or one of several values.
_Value = str | int | Number
Selection = dict[str, _Value | Annotated[list[_Value], Field(min_length=1)]]
Metric = Literal[tuple(METRICS)]


class Citation(Model):
    """The source of a study."""

    text: str = Field(description="the whole citation in one line")
    authors: list[str] | None = Field(None, description="names")
    year: int | None = Field(None, description="of publication")
    url: Annotated[str, Field(pattern="^https://")] | None = Field(
        None, description="https address of the source"
    )


class Tolerance(Model):
    """How far apart two numbers may be and still count as equal (docs/verdicts.md)."""

    relative: Positive = Field(0.05, description="share of the published value")
    accuracy: Positive = Field(0.01, description="absolute")


class ModelEntry(Model):
    """A model of the grid."""

    model: str | None = Field(
        None,
        description="its file scripts/parbench/models/<name>.py; by default called as the entry",
    )
    options: dict[str, Any] = Field({}, description="options of the model file")
    pretrained: bool | str = Field(
        False,
        description="whether it starts from published weights: true takes those under `weights` in "
        "config.yaml that are of this model with these options, a name one of several; default: "
        "from weights that the seed draws",
    )
    settings: Layer = Field({}, description="settings for this model only")


class Variant(Model):
    """A strategy on some hardware."""

    strategy: str = Field(description="a file scripts/parbench/strategies/<name>.py")
    models: Names | None = Field(None, description="those that it trains; all by default")
    options: dict[str, Any] = Field({}, description="options of the strategy file")
    hardware: str = Field(description="a name under hardware in config.yaml")
    settings: Layer = Field({}, description="settings for this variant only")
    trained_by: str | None = Field(
        None,
        description="the variant that trains: this one takes its weights, of the same seed, and "
        "predicts the test set",
    )
    baseline: str | None = Field(
        None, description="the variant that its speedup is measured against"
    )
    differs: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="what else it does than the source, in a sentence: its numbers are then not "
        "comparable",
    )
    published: Selection | None = Field(
        None,
        description="its rows among the published results: column = value, or one of several "
        "values",
    )


class Together(Model):
    """Several models, timed until all are trained."""

    models: Annotated[list[str], Field(min_length=2), Distinct] = Field(
        description="those of the study that are trained"
    )
    published: Selection = Field(
        {},
        description="laid over a variant's `published`; `model` is their names with + between",
    )


class VariantPair(Model):
    """Two variants whose times are compared while they take turns on the same devices."""

    variant: str = Field(description="the one that is said to be faster or slower")
    baseline: str = Field(
        description="the one that it is compared with; itself, to see what equal ones show"
    )
    models: Names | None = Field(
        None,
        description="for each of these, or of `together`, whose models' times add up; every model "
        "that both train by default",
    )
    inference: bool = Field(
        False, description="whether predicting the test set is timed, and not training"
    )


class Pairs(Model):
    """The times that are compared in interleaved pairs."""

    restarts: Whole = Field(4, description="how often both sides of each are started anew")
    compare: Annotated[list[VariantPair], Field(min_length=1)] = Field(
        description="what is compared"
    )


class Table(Model):
    """A table of the report."""

    title: str = Field(description="heading")
    caption: str | None = Field(None, description="what a reader must know")
    models: Annotated[list[str], Field(min_length=1)] | None = Field(
        None, description="those it is about; all by default"
    )
    variants: Annotated[list[str], Field(min_length=1)] = Field(
        description="its rows for each model"
    )
    metrics: Annotated[list[Metric], Field(min_length=1)] = Field(description="its columns")
    units: dict[str, Literal["s", "min", "h", "percent", "fraction"]] | None = Field(
        None, description="units for display, such as {train_seconds: min}"
    )

    def holds(self, model: str, variant: str, several: bool = False) -> bool:
        """Return whether model and variant are a row; ``several`` together only if named."""
        models = self.models or ([] if several else [model])
        return variant in self.variants and model in models


class Study(Model):
    """A table of a paper, or of several, as models x variants x seeds."""

    title: str = Field(min_length=1, description="heading in the report")
    description: str = Field(description="what is compared and why")
    citation: Citation | None = Field(description="the source; null where there is none")
    published: str | None = Field(
        None,
        description="the source's name in column `study` of one of studies/published/*.csv",
    )
    scaled_from: Name | None = Field(
        None, description="the study at published scale that this one is a smaller copy of"
    )
    claims: Names | None = Field(
        None,
        description="claims of any source, by their names in studies/published/claims.yaml, that "
        "it is asked at its own scale; those of its source by default",
    )
    dataset: str = Field(description="a name under datasets in config.yaml")
    seeds: Seeds = Field(description="one run of every cell for each; distinct")
    settings: Layer = Field({}, description="what the source states or the study decides")
    assumed: Assumed = Field(
        {}, description="what the source leaves open; absolute times are then not comparable"
    )
    tolerance: Tolerance = Field(
        default_factory=Tolerance,
        description="how far two numbers may be apart that count as equal: a reproduced and its "
        "published one, or two that a claim says are the same (docs/verdicts.md)",
    )
    models: Annotated[dict[str, ModelEntry], Field(min_length=1)] = Field(
        description="rows of the grid, each a file scripts/parbench/models/<name>.py"
    )
    variants: Annotated[dict[Name, Variant], Field(min_length=1)] = Field(
        description="columns of the grid"
    )
    together: dict[Annotated[str, Field(pattern="^[a-z0-9][a-z0-9_+-]{0,63}$")], Together] = Field(
        {},
        description="rows of several models: the time until all are trained, at the same time or "
        "one after the other; by the name that tables give them",
    )
    pairs: Pairs | None = Field(
        None, description="which times are compared in interleaved pairs; none by default"
    )
    second_device: str | None = Field(
        None,
        description="the variant that has a second device: a figure shows what it brings beside "
        "what the other variants make of one, all against their baseline",
    )
    tables: Annotated[list[Table], Field(min_length=1)] = Field(
        description="the tables of the report, in the shape of the source's"
    )

    def trained(self, variant: str) -> list[str]:
        """Return the models that ``variant`` trains."""
        models = self.variants[variant].models
        return list(self.models) if models is None else models

    def trained_in_both(self, one: str, other: str) -> list[str]:
        """Return the models that both variants train."""
        return [model for model in self.trained(one) if model in self.trained(other)]

    def options(self, entry: Variant) -> dict[str, Any]:
        """Return a variant's strategy options, laid over those assumed for the strategy."""
        return {**self.assumed.get("options", {}).get(entry.strategy, {}), **entry.options}

    def members(self, name: str) -> list[str]:
        """Return the models that ``name`` stands for: one model, or an entry of `together`."""
        return self.together[name].models if name in self.together else [name]
