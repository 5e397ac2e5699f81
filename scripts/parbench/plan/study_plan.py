"""Define the content of results/plan/<study>.json, which tables and report read.

This module must not import torch, pandas or a strategy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer

from parbench.cell import Dataset, Hardware, Options, Training
from parbench.errors import ParbenchError
from parbench.files import FILE_NAME, read_json
from parbench.plan.configuration import Override
from parbench.plan.strict_model import Form, Number, StrictModel, validated
from parbench.plan.study import Citation, Table, Tolerance

SCHEMA_VERSION = 1
# Not what to delete: the path may have come from a user, and be of another file.
WHERE_PLANS_ARE = "a study's plan is results/plan/<study>.json, which every run writes"


# Plans in evidence come from other people, so their texts are made safe to show.
FileName = Annotated[str, Form(f"^{FILE_NAME}$", "the name of a file, without a folder")]


# What a cell consists of; its numbers are written unchanged.
CellHardware = Annotated[Hardware, PlainSerializer(asdict)]
CellDataset = Annotated[Dataset, PlainSerializer(asdict)]
CellTraining = Annotated[Training, PlainSerializer(asdict)]


class DerivedSettings(StrictModel):
    """Values derived from a group's settings, hardware and strategy."""

    ranks: int = Field(description="data-parallel size")
    micro_batches: int = Field(description="number of pieces of a rank's share of a batch")
    learning_rate: Number = Field(
        description="peak learning rate, after learning_rate_rule is applied"
    )
    batch_norm: str = Field(description="what BatchNorm normalizes over, as text")
    pipeline_bound: Number | None = Field(description="upper bound on a pipeline's speedup")


class FailedCell(StrictModel):
    """A cell that failed, as reports/unfinished.html shows it."""

    cell: str
    sentence: str
    lines: list[str] = Field(description="the end of its log")
    log: str = Field(description="path of its log")


class Partial(StrictModel):
    """What a plan that is only partly done says about a group or a pair."""

    note: str | None = Field(None, description="the note beside its numbers")
    failed: list[FailedCell] = Field([], description="its cells that failed")
    waiting: int = Field(0, description="number of its cells that are not trained yet")


class PlannedGroup(Partial):
    """A configuration with all its seeds, or several models together without cells of its own."""

    id: str
    model: str
    network: str | None = Field(None, description="what its cells call the model, if not `model`")
    variant: str
    strategy: str
    options: Options
    model_options: Options
    pretrained: dict[str, str] = Field({}, description="SHA-256 of published weights, by model")
    hardware: CellHardware
    dataset: CellDataset
    training: CellTraining
    seeds: list[int]
    cells: list[FileName] = Field(description="ids of its cells, by seed")
    not_run: str | None = Field(description="why this machine cannot run its cells")
    baseline: str | None = Field(description="id of the group that speedups are measured against")
    published: dict[str, Any] | None = Field(
        description="which published rows belong to it: for each column, a value or several"
    )
    differs: str | None = Field(None, description="how it differs from the source")
    scores_differ: str | None = Field(None, description="how only its scores differ")
    scaled: list[str] = Field(
        description="how it is smaller than the source, a phrase for each difference"
    )
    comparable: dict[str, str] = Field({}, description="why a metric is not comparable, by metric")
    work: DerivedSettings
    trained_by: str | None = Field(
        None, description="id of the group whose weights it predicts with; it does not train"
    )
    members: list[str] = Field([], description="for models together: ids of their groups")


class PairGroup(Partial):
    """A pair of variants that take turns on the same devices, with all restarts."""

    id: str
    model: str = Field(description="the model, or the study's name for several models together")
    variant: str
    baseline: str
    sides: list[str] = Field(
        description="ids of the groups compared (several per side if models are taken together); "
        "those of the variant first"
    )
    variants: int = Field(
        description="how many of `sides` belong to the variant; the rest belong to the baseline"
    )
    inference: bool = Field(description="true: predicting is timed instead of training")
    restarts: list[int]
    cells: list[FileName] = Field(description="ids of its cells, by restart")
    not_run: str | None = Field(description="why this machine cannot run its cells")


class About(StrictModel):
    """A study as the report shows it."""

    name: FileName
    title: str
    description: str
    citation: Citation | None
    dataset: str
    source_dataset: str
    settings: dict[str, Any]
    assumed: dict[str, Any]
    override: Override
    published: str | None = Field(description="name of the source")
    claims: list[str] = Field([], description="claims of other sources that it tests")
    second_device: str | None = Field(None, description="the variant with a second device")
    tolerance: Tolerance
    tables: list[Table]


class Evidence(StrictModel):
    """The file of evidence that a plan was unpacked from."""

    file: str
    study: str
    machine: str
    date: str
    digest: str


class StudyPlan(StrictModel):
    """Everything that the tables and the report know about a study before any cell is trained."""

    schema_version: Literal[1]
    study: About
    stack: str
    deployment: str
    groups: list[PlannedGroup]
    together: list[PlannedGroup]
    arguments: list[str] = Field(description="Snakemake's arguments, to run the study again")
    pairs: list[PairGroup] = Field([], description="pairs whose times are compared")
    evidence: Evidence | None = Field(None, description="set if it was unpacked from evidence")

    @classmethod
    def of(cls, content: object, where: str | Path) -> StudyPlan:
        """Return the plan with the ``content`` of a plan's file, of any version.

        Raises ParbenchError, which begins with ``where``, for other content.
        """
        return validated(cls, content, str(where), of_any_version=True)

    @classmethod
    def read(cls, path: Path, prepare: Callable[[Any], Any] = lambda content: content) -> StudyPlan:
        """Return the plan in a file that a run wrote, after ``prepare`` has transformed its
        content.

        Raises ParbenchError, which names the file, for other content.
        """
        content = read_json(path, WHERE_PLANS_ARE)
        required = [name for name, field in cls.model_fields.items() if field.is_required()]
        missing = [key for key in required if not isinstance(content, dict) or key not in content]
        if missing:
            raise ParbenchError(
                f"{path}: not a study's plan: without {', '.join(missing)}; {WHERE_PLANS_ARE}"
            )
        return cls.of(prepare(content), path)

    @property
    def measured(self) -> list[PlannedGroup | PairGroup]:
        """All groups and pairs, which have cells of their own."""
        return [*self.groups, *self.pairs]

    def runnable(self) -> list[str]:
        """Return the ids of the cells that this machine can run, each once."""
        cells = (cell for group in self.measured if group.not_run is None for cell in group.cells)
        return list(dict.fromkeys(cells))
