"""Read metrics.json: what one run of a cell, or of a pair, measured.

`metrics_json` writes the file, also where there is no pydantic; rules/schemas/metrics.schema.yaml
and pair.schema.yaml are made from these pydantic models.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import (
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from parbench import cell as cells
from parbench.cell import Cell, Pair
from parbench.errors import ParbenchError
from parbench.files import read_json
from parbench.printable import printable
from parbench.runs.parts import (
    Beside,
    Count,
    Environment,
    Epoch,
    Extended,
    Inference,
    Moment,
    NotNegative,
    Operators,
    PeakMemory,
    Phases,
    Positive,
    Record,
    Resumed,
    Sha256,
    Share,
    Side,
    Slice,
    Tokens,
    Whole,
)
from parbench.words import brief, plain

_Kind = TypeVar("_Kind", Cell, Pair)


def _as(kind: type[_Kind], value: Any) -> _Kind:
    try:
        cell = cells.of(value)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"not a cell of this version ({error})") from None
    if not isinstance(cell, kind):
        raise ValueError(f"a {type(cell).__name__.lower()}, not a {kind.__name__.lower()}")
    return cell


_OBJECT = WithJsonSchema({"type": "object"})
WholeCell = Annotated[Cell, PlainValidator(partial(_as, Cell)), _OBJECT]
WholePair = Annotated[Pair, PlainValidator(partial(_as, Pair)), _OBJECT]


@dataclass(frozen=True)
class Trained:
    """A cell that was trained in a separate run or as a side of a pair.

    ``code``: the digest of its code, None in older files of pairs. ``peak_memory_mib`` and
    ``joules_per_sample``: only for a side, and None if unknown.
    """

    cell: Cell
    environment: Environment
    code: str | None
    peak_memory_mib: PeakMemory | None = None
    joules_per_sample: float | None = None


class CellRun(Extended):
    """metrics.json, what one run of one cell measured.

    Only parbench/measure/ writes it. If a run did not end ok, its numbers are null and its lists
    are empty.
    """

    schema_version: Literal[1] = Field(description="version of this file's shape")
    cell: WholeCell = Field(description="the whole cell.json")
    status: Literal["ok", "out_of_memory", "diverged"] = Field(description="how the run ended")
    reason: str | None = Field(description="why it did not end ok, in words")
    train_seconds: Positive | None = Field(description="sum of epoch_seconds")
    epoch_seconds: list[Positive] = Field(
        description="seconds of each epoch: devices synchronized, slowest rank, warm-up and "
        "evaluation excluded"
    )
    warmup_steps: Count = Field(
        description="steps before the clock that the cell asked for, undone; a last batch of "
        "another size is one more"
    )
    steps_per_epoch: Whole | None = Field(description="optimizer steps of an epoch")
    samples_per_second: Positive | None = Field(
        description="samples of all ranks over train_seconds"
    )
    peak_memory_mib: PeakMemory
    startup_seconds: NotNegative | None = Field(
        description="from the launcher's start to the first timed step, warm-up included"
    )
    energy_joules: NotNegative | None = Field(
        description="of the accelerators over the timed steps by NVML; null where it cannot be read"
    )
    test_accuracy: Share | None = Field(
        description="share of the whole test set after the last epoch; null where training.steps "
        "left the rest of it out"
    )
    test_precision_macro: Share | None
    test_recall_macro: Share | None
    test_f1_macro: Share | None
    test_specificity_macro: Share | None
    confusion: list[list[Count]] = Field(
        description="counts; rows are true classes, columns predicted ones"
    )
    inference: Inference | None
    tokens: Tokens | None = None
    weights_sha256: Sha256 | None = Field(
        description="SHA-256 of the trained weights and buffers (`metrics_json.weights_sha256`); "
        "equal for runs that learned the same, bit for bit"
    )
    predictions_sha256: Sha256 | None = Field(
        None,
        description="SHA-256 of the predicted classes of the test set, only for a cell that only "
        "predicts; equal for runs that predicted the same for every id",
    )
    history: list[Epoch] = Field(description="one entry for each epoch")
    beside: list[Beside] = Field([], description="models that trained at the same time")
    profile: Annotated[Phases | Operators, Field(discriminator="kind")] | None = Field(
        None, description="what an instrument found (training.profile of the cell)"
    )
    environment: Environment
    started: Moment
    finished: Moment
    resumed_from: Annotated[list[Resumed], Field(min_length=1)] | None = Field(
        description="where an interrupted run continued, each time; null if it was not "
        "interrupted. Its times count each step once",
    )

    @property
    def trained(self) -> tuple[Trained, ...]:
        """What was trained: only its cell."""
        return (Trained(self.cell, self.environment, self.environment.code_digest),)

    @property
    def environments(self) -> tuple[Environment, ...]:
        """The environments that it was measured in: its only one."""
        return (self.environment,)

    @property
    def seconds(self) -> float:
        """The seconds from its start to its end."""
        return seconds(self.started, self.finished)

    @property
    def joules_per_sample(self) -> float | None:
        """The joules per sample; None if unknown, or if other models share the accelerators."""
        energy, speed, time = self.energy_joules, self.samples_per_second, self.train_seconds
        if self.beside or energy is None or speed is None or time is None:
            return None
        return energy / (speed * time)

    @property
    def machines(self) -> list[str]:
        """The fingerprints of the machines it was interrupted on, then of its last one."""
        before = [entry.machine for entry in self.resumed_from or []]
        return list(dict.fromkeys([*before, self.environment.machine.fingerprint]))


class PairRun(Record):
    """metrics.json of a pair, one restart of sides that took turns on the same devices.

    Only parbench/measure/metrics_json.py writes it.
    """

    schema_version: Literal[1] = Field(description="version of this file's shape")
    cell: WholePair = Field(description="the whole cell.json")
    status: Literal["ok", "out_of_memory"] = Field(description="how the run ended")
    reason: str | None = Field(
        description="why it did not end ok, or why each turn was a run of its own"
    )
    sides: list[Side] = Field(min_length=2, description="in the cell's order")
    slices: list[Slice] = Field(
        description="in the order in which they were taken; a pair has one of each side"
    )
    started: Moment
    finished: Moment
    shared: Literal[True] | None = Field(
        None,
        description="present where a Slurm job did not have its nodes to itself: others' jobs may "
        "have run on them meanwhile",
    )

    @model_validator(mode="after")
    def _complete(self) -> PairRun:
        count = len(self.cell.sides)
        if len(self.sides) != count or any(entry.side >= count for entry in self.slices):
            raise ValueError(f"sides or slices do not fit the cell, which has {count} sides")
        return self

    @property
    def trained(self) -> tuple[Trained, ...]:
        """What was trained: its sides."""
        return tuple(
            Trained(
                self.cell.sides[number],
                side.environment,
                side.environment.side_digest,
                side.peak_memory_mib,
                self._joules_per_sample(number),
            )
            for number, side in enumerate(self.sides)
        )

    def _joules_per_sample(self, side: int) -> float | None:
        own = [entry for entry in self.slices if entry.side == side and not self.cell.inference]
        joules = [entry.joules for entry in own if entry.joules is not None]
        if not own or len(joules) < len(own):
            return None
        return sum(joules) / sum(entry.samples for entry in own)

    @property
    def environments(self) -> tuple[Environment, ...]:
        """The environments that it was measured in: one for each side."""
        return tuple(side.environment for side in self.sides)

    @property
    def environment(self) -> Environment:
        """The first side's."""
        return self.sides[0].environment

    @property
    def seconds(self) -> float:
        """The seconds from its start to its end."""
        return seconds(self.started, self.finished)


def seconds(started: str, finished: str) -> float:
    """Return the seconds between two moments of metrics.json."""
    return (datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds()


def of(content: object, where: str) -> CellRun | PairRun:
    """Return the run that the ``content`` of a metrics.json describes, with text made safe to show.

    Raises ParbenchError, which begins with ``where``, for invalid content.
    """
    if not isinstance(content, dict):
        raise ParbenchError(f"{where}: contains {brief(repr(content))}, not the result of a run")
    try:
        return (PairRun if "sides" in content else CellRun).model_validate(printable(content))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        value = f"value {brief(repr(first['input']), 40)}"
        match first["type"]:
            case "missing":
                problem = "is missing"
            case "extra_forbidden":
                problem = f"unknown key ({value})"
            case "value_error":
                problem = first["msg"].removeprefix("Value error, ")
            case _:
                problem = f"{value} {plain(first['msg'])}"
        raise ParbenchError(f"{where}: {place and f'{place}: '}{problem}") from None


def read(path: str | os.PathLike[str]) -> CellRun | PairRun:
    """Read a metrics.json. Raises ParbenchError if it is not valid in this version."""
    content = read_json(path)
    try:
        return of(content, str(path))
    except ParbenchError as error:
        raise ParbenchError(f"{error}; delete the file and run the cell again") from None
