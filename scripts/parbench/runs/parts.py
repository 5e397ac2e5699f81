"""Define the parts of a run's record: machine and environment, memory, epochs, profiles, turns."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Whole = Annotated[int, Field(ge=1)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def _utc_time(value: str) -> str:
    datetime.fromisoformat(value)  # ValueError
    return value


Moment = Annotated[
    str,
    Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", description="UTC"),
    AfterValidator(_utc_time),
]


class Record(BaseModel):
    """Base of all pydantic models here: unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Extended(Record):
    """A record that may contain further metrics: any other key, with a number or null."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float | None] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    def number(self, name: str) -> float | None:
        """Return a further metric; None if it was not measured."""
        return (self.model_extra or {}).get(name)


# --- of the machine ---


class Accelerator(Record):
    """An accelerator, as its driver describes it."""

    name: str
    memory_mib: NotNegative | None = None
    driver: str | None = None


class Machine(Record):
    """A machine, as `machine.describe` describes it."""

    fingerprint: str = Field(description="digest of what tells machines apart")
    cpu: str | None = None
    cores: Count | None = None
    memory_mib: NotNegative | None = None
    os: str | None = None
    kernel: str | None = None
    accelerators: list[Accelerator] = []


class Interpreter(Record):
    """The user's own Python (`deployment: {python: ...}`)."""

    path: str = Field(description="path of its program, as Python reports it")
    records: Sha256 = Field(description="SHA-256 of its version and its packages' file lists")
    torch: dict[str, str | None] = Field(description="build: git_version, cuda, hip")


class Environment(Record):
    """What a reader needs to judge or rebuild the numbers."""

    stack: str = Field(description="name of the software stack")
    deployment: str = Field(description="host, apptainer, or the label of the user's own Python")
    interpreter: Interpreter | None = Field(
        None, description="the user's own Python, if one ran the ranks"
    )
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
        description="what besides software affects the speed of cores and GPUs, if the kernel "
        "reports it: governor, turbo, threads of a core, NUMA node, MPS, NCCL's settings and "
        "transport, power limit and highest clock; empty in older files",
    )
    oversubscribed: Literal[False] = Field(
        False, description="only in older files; cores are not shared"
    )
    world_size: Whole | None = Field(description="number of training processes")
    backend: str | None = Field(description="communication library")
    git_commit: str | None = Field(description="commit of the checkout")
    git_dirty: bool | None = Field(description="whether it had uncommitted changes")
    code_digest: str = Field(description="one digest over `code`")
    code: dict[str, str] = Field(description="digests of the modules that the cell can reach")
    side_digest: str | None = Field(
        None, description="only in pairs: a digest over the code that only this side can reach"
    )
    dataset_digest: str = Field(description="SHA-256 of the converted dataset")

    @property
    def place(self) -> str:
        """Where its software came from, as certificates name it.

        This is the label of an image, `host`, or the label of the user's own Python.
        """
        return self.image or self.deployment

    @property
    def commit(self) -> str:
        """The abbreviated commit, and whether there were uncommitted changes."""
        changed = " with uncommitted changes" if self.git_dirty else ""
        return (self.git_commit or "unknown")[:12] + changed


# --- of a cell ---


class Memory(Record):
    """Memory of a device or a process, in MiB; older files have only the peak."""

    rank: Count = Field(description="rank of the process")
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
    """What torch allocated on an accelerator for a process since warm-up, checkpoints excluded."""

    device: str = Field(description="name of the device")


class PeakMemory(Record):
    """Peak memory in MiB."""

    devices: list[DeviceMemory] = Field(description="empty on CPU")
    processes: list[Memory] = Field(
        description="resident memory of each training process, libraries included"
    )


class Inference(Record):
    """The last evaluation: forward passes over the test samples, without gradients.

    Batches have training.evaluation_batch samples. The time is taken with devices synchronized
    before the first and after the last batch, and is not part of train_seconds.
    """

    samples: Whole = Field(description="test samples of all ranks")
    seconds: Positive = Field(description="input and forward passes, of the slowest rank")
    input_seconds: NotNegative | None = Field(
        None,
        description="only in older files: the part spent on preparing input, measured per batch",
    )


class Tokens(Record):
    """What the batches of all epochs contained; only for texts."""

    number: Whole = Field(description="tokens without padding")
    padding: float = Field(ge=0, lt=1, description="share of padding in what was computed")
    per_second: Positive = Field(description="tokens without padding per second of train_seconds")


class Epoch(Extended):
    """One epoch of the history."""

    epoch: Whole = Field(description="number of the epoch, from 1")
    train_loss: float = Field(description="mean over the epoch's samples")
    learning_rate: NotNegative = Field(description="learning rate of the epoch's last step")
    seconds: Positive = Field(description="seconds of this epoch")
    elapsed_seconds: Positive = Field(description="seconds of this and earlier epochs")
    samples_per_second: Positive = Field(description="training samples per second of this epoch")
    test_accuracy: Share | None = Field(
        description="over the whole test set; null with training.steps"
    )
    test_loss: float | None = Field(
        description="mean cross-entropy over the test set; null with training.steps"
    )


class Beside(Record):
    """A model that trained at the same time on a device of its own (strategy concurrent)."""

    model: str = Field(description="its name")
    train_seconds: Positive = Field(description="seconds of its steps, as for the cell's own model")


class PhaseSeconds(Record):
    """Seconds of all epochs by phase (docs/phases.md)."""

    input: float
    compute: float
    communication: float
    waiting: float
    bubble: float
    other: float


class RankPhases(PhaseSeconds):
    """Seconds of one rank by phase."""

    rank: Count = Field(description="rank of the process")


class Phases(Record):
    """Phases, as parbench/measure/profiling/phases.py defines them.

    The phases of each rank add up to train_seconds.
    """

    kind: Literal["phases"] = Field(description="the instrument")
    waiting_known: bool = Field(
        description="whether waiting and communication are separate; on several machines they are "
        "not, since clocks differ"
    )
    mean: PhaseSeconds = Field(description="over ranks")
    ranks: list[RankPhases] = Field(min_length=1, description="by rank")


class Operator(Record):
    """An operator in a profile; the device's seconds are null if there is no device."""

    name: str = Field(description="as torch.profiler names it, such as aten::addmm")
    calls: Whole = Field(description="number of calls")
    cpu_self_seconds: NotNegative
    cpu_total_seconds: NotNegative
    device_self_seconds: NotNegative | None
    device_total_seconds: NotNegative | None


class Profiled(Record):
    """The operators of some training steps, optimizer included, or of batches of inference."""

    steps: Whole = Field(description="number of recorded steps or batches")
    cpu_self_seconds: NotNegative = Field(
        description="seconds on the processor: the sum of the self times of all operators"
    )
    device_self_seconds: NotNegative | None = Field(
        description="seconds on the accelerator; null without one"
    )
    operators: list[Operator] = Field(
        description="those with the largest self time by either clock, in that order"
    )


class Operators(Record):
    """The operators that took the most time, recorded by torch.profiler on rank 0."""

    kind: Literal["operators"] = Field(description="the instrument")
    training: Profiled | None
    inference: Profiled | None


class Resumed(Record):
    """Where an interrupted run continued."""

    epoch: Whole = Field(description="number of the epoch, from 1")
    step: Count = Field(description="steps of the epoch that were done")
    machine: str = Field(description="fingerprint of the machine that did them")


# --- of a pair ---


class Side(Record):
    """One side of a pair; older files have no memory."""

    steps: Whole | None = Field(
        description="optimizer steps (for inference: batches) of a turn, chosen during warm-up"
    )
    turns: Whole = Field(1, description="number of turns of a slice; 1 in older files")
    environment: Environment
    peak_memory_mib: PeakMemory | None = Field(
        None, description="of the timed steps of all slices; null where predicting is timed"
    )


class Slice(Record):
    """The turns of one side in a pair, together; older files have no joules."""

    pair: Count = Field(description="number of the pair, from 0")
    side: Count = Field(description="number of the side, in the cell's order, from 0")
    samples: Whole = Field(description="samples of all ranks")
    seconds: Positive = Field(
        description="of the slowest rank that trains a model of the comparison, devices "
        "synchronized"
    )
    others: NotNegative = Field(
        description="processor seconds of other programs on the side's cores"
    )
    steal: float = Field(description="core seconds that the hypervisor took away from these cores")
    waited: float | None = Field(
        description="seconds in which any program of the machine waited for a core (PSI); null "
        "where the kernel does not report it"
    )
    disturbed: bool = Field(
        description="others and steal exceed a twentieth of the seconds: the pair was taken once "
        "more"
    )
    joules: Positive | None = Field(
        None,
        description="energy of the accelerators by NVML, which updates its counters some ten times "
        "a second; null where it cannot be read, or where other models share them",
    )
