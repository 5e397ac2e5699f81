"""What metrics.json contains, as it is written; runs/records.py describes, checks and reads it.

For type checkers only, since training processes cannot import pydantic. A test checks that these
types and runs/records.py have the same keys.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict, final

from parbench.cell import CellJson, PairJson
from parbench.machine import Description

# --- the environment ---


class InterpreterJson(TypedDict):
    """The user's own Python."""

    path: str
    records: str
    torch: dict[str, str | None]


class EnvironmentJson(TypedDict):
    """What a reader needs to judge or rebuild the numbers."""

    stack: str
    deployment: str
    python: str
    packages: dict[str, str]
    lock_mismatch: list[str]
    machine: Description
    cores: list[int]
    steering: dict[str, str]
    world_size: int | None
    backend: str | None
    image: str | None
    image_digest: str | None
    git_commit: str | None
    git_dirty: bool | None
    interpreter: NotRequired[InterpreterJson]
    code_digest: str
    code: dict[str, str]
    dataset_digest: str
    side_digest: NotRequired[str]


# --- a cell's run ---


class MemoryJson(TypedDict):
    """Memory of a process, in MiB; None if unknown."""

    rank: int
    mib: float | None
    baseline_mib: float | None
    dataset_mib: float | None
    state_mib: float | None


class DeviceMemoryJson(MemoryJson):
    """Memory of a process on an accelerator, in MiB."""

    device: str


class PeakMemoryJson(TypedDict):
    """Memory of all processes and accelerators."""

    processes: list[MemoryJson]
    devices: list[DeviceMemoryJson]


class InferenceJson(TypedDict):
    """The last evaluation."""

    samples: int
    seconds: float


class TokensJson(TypedDict):
    """What the batches of texts contained."""

    number: int
    padding: float
    per_second: float


class EpochJson(TypedDict):
    """One epoch of the history."""

    epoch: int
    train_loss: float
    learning_rate: float
    seconds: float
    elapsed_seconds: float
    samples_per_second: float
    test_accuracy: float | None
    test_loss: float | None


class BesideJson(TypedDict):
    """A model that trained at the same time."""

    model: str
    train_seconds: float


class ResumedJson(TypedDict):
    """Where an interrupted run continued."""

    epoch: int
    step: int
    machine: str


class PhaseSecondsJson(TypedDict):
    """Seconds by phase."""

    input: float
    compute: float
    communication: float
    waiting: float
    bubble: float
    other: float


class RankPhasesJson(PhaseSecondsJson):
    """Seconds of one rank by phase."""

    rank: int


class PhasesJson(TypedDict):
    """What the profiler `phases` found."""

    kind: Literal["phases"]
    waiting_known: bool
    mean: PhaseSecondsJson
    ranks: list[RankPhasesJson]


class OperatorJson(TypedDict):
    """An operator in a profile; the device's seconds are None if there is no device."""

    name: str
    calls: int
    cpu_self_seconds: float
    cpu_total_seconds: float
    device_self_seconds: float | None
    device_total_seconds: float | None


class OperatorTotals(TypedDict):
    """Operators, with the seconds of all."""

    cpu_self_seconds: float
    device_self_seconds: float | None
    operators: list[OperatorJson]


class ProfiledJson(OperatorTotals):
    """The operators of some training steps, or of batches of inference."""

    steps: int


class OperatorsJson(TypedDict):
    """What the profiler `operators` found."""

    kind: Literal["operators"]
    training: ProfiledJson | None
    inference: ProfiledJson | None


class ScoresJson(TypedDict, total=False):
    """The scores of predictions; None and an empty matrix if there are none."""

    test_accuracy: float | None
    test_precision_macro: float | None
    test_recall_macro: float | None
    test_f1_macro: float | None
    test_specificity_macro: float | None
    confusion: list[list[int]]


class MeasuredValues(ScoresJson, total=False):
    """What a run measures, apart from further metrics, which have numbers or None."""

    train_seconds: float | None
    epoch_seconds: list[float]
    warmup_steps: int
    steps_per_epoch: int | None
    samples_per_second: float | None
    peak_memory_mib: PeakMemoryJson
    startup_seconds: float | None
    energy_joules: float | None
    inference: InferenceJson | None
    tokens: TokensJson
    weights_sha256: str | None
    predictions_sha256: str
    history: list[EpochJson]
    beside: list[BesideJson]
    profile: PhasesJson | OperatorsJson | None
    resumed_from: list[ResumedJson] | None


Status = Literal["ok", "out_of_memory", "diverged"]


@final
class RunJson(MeasuredValues):
    """The content of metrics.json of a cell."""

    schema_version: int
    cell: CellJson
    status: Status
    reason: str | None
    environment: EnvironmentJson
    started: str
    finished: str


# --- a pair's run ---


class PairSideJson(TypedDict):
    """One side of a pair."""

    steps: int | None
    turns: NotRequired[int]
    environment: EnvironmentJson
    peak_memory_mib: NotRequired[PeakMemoryJson | None]


class SliceJson(TypedDict):
    """The turns of one side in a pair, together."""

    pair: int
    side: int
    samples: float
    seconds: float
    others: float
    steal: float
    waited: float | None
    joules: float | None
    disturbed: bool


class PairRunJson(TypedDict):
    """The content of metrics.json of a pair."""

    schema_version: int
    cell: PairJson
    status: Status
    reason: str | None
    sides: list[PairSideJson]
    slices: list[SliceJson]
    started: str
    finished: str
    shared: NotRequired[bool]
