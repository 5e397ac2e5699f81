"""Models of metrics.json, as readers take it: what one run of a cell, or of a pair, measured.

`metrics_json` writes the file, also where there is no pydantic; rules/schemas/metrics.schema.yaml
and pair.schema.yaml are made from these models.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from parbench import cell as cells
from parbench.cell import Cell, Pair
from parbench.errors import ParbenchError
from parbench.files import read_json
from parbench.printable import printable
from parbench.words import brief

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Whole = Annotated[int, Field(ge=1)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Moment = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", description="UTC")]


def _as(kind: type, value: Any) -> Any:
    try:
        cell = cells.of(value)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"no cell of this version ({error})") from None
    if not isinstance(cell, kind):
        raise ValueError(f"a {type(cell).__name__.lower()}, and not a {kind.__name__.lower()}")
    return cell


_OBJECT = WithJsonSchema({"type": "object"})
WholeCell = Annotated[Cell, PlainValidator(partial(_as, Cell)), _OBJECT]
WholePair = Annotated[Pair, PlainValidator(partial(_as, Pair)), _OBJECT]


class Record(BaseModel):
    """Base of all models here: unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


# --- of the machine ---


class Accelerator(Record):
    """An accelerator, as its driver names it."""

    name: str
    memory_mib: NotNegative | None = None
    driver: str | None = None


class Machine(Record):
    """A machine, as `machine.describe` tells of it."""

    fingerprint: str = Field(description="digest of what tells machines apart")
    cpu: str | None = None
    cores: Count | None = None
    memory_mib: NotNegative | None = None
    os: str | None = None
    kernel: str | None = None
    accelerators: list[Accelerator] = []


class Environment(Record):
    """What a reader needs to judge or rebuild the numbers."""

    stack: str = Field(description="name of the software stack")
    deployment: str = Field(description="host or apptainer")
    image: str | None = Field(description="name of the image")
    image_digest: str | None = Field(description="its SHA-256")
    python: str = Field(description="version")
    packages: dict[str, str] = Field(
        description="installed versions of what can change a measurement"
    )
    lock_mismatch: list[str] = Field(description="how they differ from the stack's lock")
    machine: Machine
    cores: list[Count] = Field(description="the cores that the ranks were bound to")
    steering: dict[str, str] = Field(
        {},
        description="what steers the speed of cores and GPUs besides software, as far as the "
        "kernel tells: governor, turbo, threads of a core, NUMA node, MPS, NCCL's settings, power "
        "limit and highest clock; empty in older files",
    )
    oversubscribed: Literal[False] = Field(
        False, description="of older files; cores are not shared"
    )
    world_size: Whole | None = Field(description="training processes")
    backend: str | None = Field(description="communication library")
    git_commit: str | None = Field(description="of the checkout")
    git_dirty: bool | None = Field(description="whether it had uncommitted changes")
    code_digest: str = Field(description="one digest over `code`")
    code: dict[str, str] = Field(description="digests of the modules that the cell can reach")
    side_digest: str | None = Field(
        None, description="of a pair: a digest over the code that this side alone can reach"
    )
    dataset_digest: str = Field(description="SHA-256 of the converted dataset")

    @property
    def commit(self) -> str:
        """The commit in short, with what it lacks."""
        changed = " with uncommitted changes" if self.git_dirty else ""
        return (self.git_commit or "unknown")[:12] + changed


# --- of a cell ---


class Memory(Record):
    """Memory of a device or a process, in MiB; older files have only the peak."""

    rank: Count = Field(description="the process")
    mib: NotNegative | None = Field(
        description="peak in the timed steps (in older files: since the start); null where the "
        "kernel does not reset it"
    )
    baseline_mib: NotNegative | None = Field(
        None, description="in use before data and model were loaded"
    )
    dataset_mib: NotNegative | None = Field(
        None, description="tensors of the dataset and of what makes its batches"
    )
    state_mib: NotNegative | None = Field(
        None,
        description="weights, buffers, gradients and the optimizer's state between two steps",
    )


class DeviceMemory(Memory):
    """What torch allocated on an accelerator by a process since warm-up, without checkpoints."""

    device: str = Field(description="name of the device")


class PeakMemory(Record):
    """Peak memory in MiB."""

    devices: list[DeviceMemory] = Field(description="empty on CPU")
    processes: list[Memory] = Field(
        description="resident memory of each training process, libraries included"
    )


class Inference(Record):
    """The last evaluation: passes over test samples without gradients, in batches of
    training.evaluation_batch, devices waited for before the first and after the last; no part of
    train_seconds."""

    samples: Whole = Field(description="test samples of all ranks")
    seconds: Positive = Field(description="input and forward passes, of the slowest rank")
    input_seconds: float | None = Field(
        None,
        description="in older files: the part that prepared the input, each batch by itself",
    )


class Tokens(Record):
    """Of texts alone: what the batches of all epochs held."""

    number: Whole = Field(description="tokens without padding")
    padding: float = Field(ge=0, lt=1, description="share of padding in what was computed")
    per_second: Positive = Field(description="tokens without padding a second of train_seconds")


class Epoch(Record):
    """One epoch of the history."""

    epoch: Whole = Field(description="from 1")
    train_loss: float = Field(description="mean over the epoch's samples")
    learning_rate: NotNegative = Field(description="of the epoch's last step")
    seconds: Positive = Field(description="of this epoch")
    elapsed_seconds: Positive = Field(description="of this and earlier epochs")
    samples_per_second: Positive = Field(description="of this epoch")
    test_accuracy: Share | None = Field(
        description="over the whole test set; null with training.steps"
    )
    test_loss: float | None = Field(
        description="mean cross-entropy over the test set; null with training.steps"
    )


class Beside(Record):
    """A model that trained at the same time on a device of its own (strategy concurrent)."""

    model: str = Field(description="its name")
    train_seconds: Positive = Field(description="of its steps, as of the cell's own model")


class PhaseSeconds(Record):
    """Seconds of all epochs by phase (docs/phases.md)."""

    input: float
    compute: float
    communication: float
    waiting: float
    bubble: float
    other: float


class RankPhases(PhaseSeconds):
    """The same of a rank."""

    rank: Count = Field(description="the process")


class Phases(Record):
    """Phases, as parbench/measure/profiling/phases.py defines them; of each rank they sum to
    train_seconds."""

    kind: Literal["phases"] = Field(description="the instrument")
    waiting_known: bool = Field(
        description="whether waiting is told from communication; not over several machines, whose "
        "clocks do not compare"
    )
    mean: PhaseSeconds = Field(description="over ranks")
    ranks: list[RankPhases] = Field(min_length=1, description="by rank")


class Operator(Record):
    """An operator in a profile; the device's seconds are null where there is none."""

    name: str = Field(description="as torch.profiler names it, such as aten::addmm")
    calls: Whole = Field(description="how often")
    cpu_self_seconds: NotNegative
    cpu_total_seconds: NotNegative
    device_self_seconds: NotNegative | None
    device_total_seconds: NotNegative | None


class Profiled(Record):
    """Some steps, the optimizer's included, or batches of the last evaluation."""

    steps: Whole = Field(description="that were recorded")
    cpu_self_seconds: NotNegative = Field(
        description="on the processor; self times add up to the sum of all operators"
    )
    device_self_seconds: NotNegative | None = Field(
        description="on the accelerator; null where there is none"
    )
    operators: list[Operator] = Field(
        description="those with the largest self time by either clock, in that order"
    )


class Operators(Record):
    """Operators that took the time, by torch.profiler on rank 0."""

    kind: Literal["operators"] = Field(description="the instrument")
    training: Profiled | None
    inference: Profiled | None


class Resumed(Record):
    """Where an interrupted run went on."""

    epoch: Whole = Field(description="from 1")
    step: Count = Field(description="steps of the epoch that were done")
    machine: str = Field(description="fingerprint of the machine that had done them")


@dataclass(frozen=True)
class Trained:
    """A cell that was trained: in a run of its own, or as a side of a pair.

    ``code``: the digest of its code, None in older files of pairs.
    """

    cell: Cell
    environment: Environment
    code: str | None


class Run(Record):
    """metrics.json, what one run of one cell measured.

    Written by parbench/measure/ alone. Numbers of a run that did not end ok are null, lists empty.
    Optional metrics are further keys with a number or null: see `number`.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float | None] = Field(init=False)

    schema_version: Literal[1] = Field(description="version of this file's shape")
    cell: WholeCell = Field(description="the whole cell.json")
    status: Literal["ok", "out_of_memory", "diverged"] = Field(description="how the run ended")
    reason: str | None = Field(description="why it did not end ok, in words")
    train_seconds: Positive | None = Field(description="sum of epoch_seconds")
    epoch_seconds: list[Positive] = Field(
        description="seconds of each epoch: devices synchronised, slowest rank, warm-up and "
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
        description="SHA-256 of the predicted classes of the test set, of a cell that predicts "
        "alone; equal for runs that predicted the same, id by id",
    )
    history: list[Epoch] = Field(description="an entry an epoch")
    beside: list[Beside] = Field([], description="from one start")
    profile: Annotated[Phases | Operators, Field(discriminator="kind")] | None = Field(
        None, description="what an instrument found (training.profile of the cell)"
    )
    environment: Environment
    started: Moment
    finished: Moment
    resumed_from: Annotated[list[Resumed], Field(min_length=1)] | None = Field(
        description="where an interrupted run went on, each time; null when it ran in one go. Its "
        "clocks count each step once",
    )

    @property
    def trained(self) -> tuple[Trained, ...]:
        """What was trained: its cell."""
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
    def machines(self) -> list[str]:
        """The fingerprints of the machines it was interrupted on, then of its last one."""
        before = [entry.machine for entry in self.resumed_from or []]
        return list(dict.fromkeys([*before, self.environment.machine.fingerprint]))

    def number(self, name: str) -> float | None:
        """Return an optional metric; None if it was not measured."""
        return (self.model_extra or {}).get(name)


# --- of a pair ---


class Side(Record):
    """One side of a pair."""

    steps: Annotated[int, Field(ge=4)] | None = Field(
        description="optimizer steps (of inference: batches) of a slice, as warm-up found them"
    )
    environment: Environment


class Slice(Record):
    """One turn of one side."""

    pair: Count = Field(description="from 0")
    side: Count = Field(description="in the cell's order")
    samples: Whole = Field(description="of all ranks")
    seconds: Positive = Field(
        description="of the slowest rank that trains a model of the comparison, devices "
        "synchronised"
    )
    others: NotNegative = Field(
        description="processor seconds of other programs on the side's cores"
    )
    steal: float = Field(description="seconds in which the machine below took these cores away")
    waited: float | None = Field(
        description="seconds in which any program of the machine waited for a core (PSI); null "
        "where the kernel does not tell"
    )
    disturbed: bool = Field(
        description="others and steal exceed a twentieth of the seconds: the pair was taken once "
        "more"
    )


class PairRun(Record):
    """metrics.json of a pair, one restart of sides that took turns on the same devices.

    Written by parbench/measure/metrics_json.py alone.
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

    @property
    def trained(self) -> tuple[Trained, ...]:
        """What was trained: its sides."""
        sides = zip(self.cell.sides, self.environments, strict=True)
        return tuple(Trained(cell, where, where.side_digest) for cell, where in sides)

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


def of(content: Any, where: str) -> Run | PairRun:
    """Return the run that the ``content`` of a metrics.json describes, its texts safe to show.
    Raises a ParbenchError that begins with ``where`` if it describes none."""
    if not isinstance(content, dict):
        raise ParbenchError(f"{where}: holds {brief(repr(content))}, and not the result of a run")
    try:
        return (PairRun if "sides" in content else Run).model_validate(printable(content))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ").replace("Input should", "should")
        is_told = first["type"] in ("missing", "value_error")
        value = "" if is_told else f"value {brief(repr(first['input']), 40)} "
        raise ParbenchError(f"{where}: {place}: {value}{message}") from None


def read(path: str | os.PathLike) -> Run | PairRun:
    """Read metrics.json. Raises ParbenchError if it is none of this version."""
    content = read_json(path)
    try:
        return of(content, str(path))
    except ParbenchError as error:
        raise ParbenchError(f"{error}; delete the file and run the cell again") from None
