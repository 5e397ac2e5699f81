"""Define a cell, as stored in cell.json: one configuration with one seed, or a pair of them.

The launcher and the training processes read it; the plan writes it. Standard library only.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from parbench.errors import ParbenchError
from parbench.files import read_json

SCHEMA_VERSION = 1
# Settings of how a step is computed: they affect its speed and memory, not its mathematics.
TUNING = ("memory_format", "compile", "fused", "cudnn_benchmark", "gradient_accumulation")
# cell.json omits these at their defaults, so that cells made before they existed keep their ids.
SCHEDULE = ("learning_rate_steps", "learning_rate_factor", "learning_rate_warmup")
IMPLIED = (*TUNING, *SCHEDULE, "normalization")

# By name, the options of a model or strategy; the schemas in its file say which values they take.
Options = dict[str, Any]
OptionSchema = dict[str, Any]  # a JSON schema, with `description`, `default` and perhaps `implied`

# Values of settings.
Optimizer = Literal["sgd", "adamw"]
LearningRateRule = Literal["fixed", "linear"]
Schedule = Literal["constant", "cosine", "onecycle", "step"]
BatchNorm = Literal["local", "synchronized"]
Precision = Literal["fp32", "bf16", "fp16"]
MemoryFormat = Literal["contiguous", "channels_last"]
Compile = Literal["none", "default", "reduce-overhead", "max-autotune"]
Normalization = Literal["dataset", "imagenet", "none"]
Input = Literal["tensor", "disk", "pil"]
Padding = Literal["longest", "fixed"]
Mode = Literal["performance", "deterministic"]
Profile = Literal["none", "operators", "training_operators", "phases"]


@dataclass(frozen=True)
class Pretrained:
    """Published weights: name in config.yaml, SHA-256 of the file, version of the conversion."""

    weights: str
    sha256: str
    conversion: int


@dataclass(frozen=True)
class Model:
    """A model, which is a file in parbench/models, with all of its options."""

    name: str
    options: Options
    pretrained: Pretrained | None = None  # None: the seed draws the weights


@dataclass(frozen=True)
class Strategy:
    """A strategy, which is a file in parbench/strategies, with all of its options."""

    name: str
    options: Options


@dataclass(frozen=True)
class Hardware:
    """What a cell runs on: ``devices`` on each of ``nodes``.

    ``threads``: cores of a CPU device, or of the process that drives a GPU.
    """

    name: str  # in config.yaml
    device: str  # cpu, cuda or mps
    devices: int
    threads: int
    nodes: int
    gpu_model: str | None  # part of the accelerator's name; None for any


@dataclass(frozen=True)
class Dataset:
    """A dataset of config.yaml; None samples means all."""

    name: str
    train_samples: int | None
    test_samples: int | None


@dataclass(frozen=True)
class TF32:
    """Which operations on NVIDIA GPUs may round float32 factors to TensorFloat-32.

    The defaults are torch's.
    """

    convolutions: bool = True
    matmul: bool = False

    @classmethod
    def of(cls, value: TF32 | dict[str, bool] | bool) -> TF32:
        """Return a study's setting, which is one value for both operations or one for each."""
        if isinstance(value, bool):
            return cls(value, value)
        return cls(**value) if isinstance(value, dict) else value


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of the training loop; parbench/plan/settings.py describes each."""

    epochs: int
    global_batch: int
    min_tail: int = 16
    optimizer: Optimizer
    learning_rate: float
    learning_rate_rule: LearningRateRule = "fixed"
    momentum: float = 0.9
    weight_decay: float = 0
    schedule: Schedule
    learning_rate_steps: tuple[float, ...] = ()
    learning_rate_factor: float = 0.1
    learning_rate_warmup: float = 0
    label_smoothing: float = 0
    batch_norm: BatchNorm = "local"
    precision: Precision = "fp32"
    if TYPE_CHECKING:
        tf32: TF32 = TF32()
    else:
        tf32: TF32 | dict[str, bool] | bool = TF32()  # as a study writes it; __post_init__ unifies
    memory_format: MemoryFormat = "contiguous"
    compile: Compile = "none"
    fused: bool = False
    cudnn_benchmark: bool = False
    gradient_accumulation: int = 1
    augment: bool = True
    normalization: Normalization = "dataset"
    input: Input = "tensor"
    image_size: int = 32
    max_length: int | None = None  # None for images
    padding: Padding = "longest"
    warmup_steps: int = 2
    steps: int | None = None
    evaluation_batch: int = 256
    mode: Mode = "performance"
    profile: Profile = "none"

    def __post_init__(self) -> None:
        """Convert ``tf32`` to a TF32, and lists from JSON and YAML to tuples."""
        object.__setattr__(self, "tf32", TF32.of(self.tf32))
        object.__setattr__(self, "learning_rate_steps", tuple(self.learning_rate_steps))

    @property
    def tuned(self) -> dict[str, Any]:
        """The settings in TUNING that differ from their defaults."""
        values = {key: getattr(self, key) for key in TUNING}
        return {key: value for key, value in values.items() if value != getattr(Training, key)}


@dataclass(frozen=True)
class RunSettings:
    """Settings that do not change a measurement. Times in seconds."""

    timeout_seconds: float
    checkpoint_seconds: float
    grace_seconds: float
    interface: str | None
    connect_seconds: float
    spark_master: str | None = None  # address of a Spark cluster
    spark_conf: dict[str, str] = field(default_factory=dict)
    python: str | None = None  # path of the user's own Python, which runs the ranks
    keeps_weights: bool = False  # another cell predicts with these weights

    def json(self) -> dict[str, Any]:
        """Return the JSON object for cell.json, with `python` only if it is set."""
        content = asdict(self)
        if self.python is None:
            del content["python"]
        return content


@dataclass(frozen=True)
class Cell:
    """One configuration with one seed.

    ``trained_by``: the cell whose weights this one uses to predict the test set, without training.
    """

    id: str
    model: Model
    strategy: Strategy
    hardware: Hardware
    dataset: Dataset
    training: Training
    stack: str
    deployment: str
    seed: int
    run: RunSettings
    trained_by: str | None = None

    @property
    def sides(self) -> tuple[Cell, ...]:
        """The cells to train: only this one; a pair has several."""
        return (self,)

    @classmethod
    def of(cls, content: dict[str, Any]) -> Cell:
        """Return the cell described by the JSON object ``content``, which is assumed valid."""
        model = dict(content["model"])
        if "pretrained" in model:
            model["pretrained"] = Pretrained(**model["pretrained"])
        return cls(
            id=content["id"],
            model=Model(**model),
            strategy=Strategy(**content["strategy"]),
            hardware=Hardware(**content["hardware"]),
            dataset=Dataset(**content["dataset"]),
            training=Training(**content["training"]),
            stack=content["stack"],
            deployment=content["deployment"],
            seed=content["seed"],
            run=RunSettings(**content["run"]),
            trained_by=content.get("trained_by"),
        )

    def json(self) -> dict[str, Any]:
        """Return the content of cell.json."""
        head = {"schema_version": SCHEMA_VERSION}
        content: dict[str, Any] = {**head, **asdict(self), "run": self.run.json()}
        if self.model.pretrained is None:
            del content["model"]["pretrained"]
        if self.training.max_length is None:
            del content["training"]["max_length"], content["training"]["padding"]
        for key in IMPLIED:
            if content["training"][key] == getattr(Training, key):
                del content["training"][key]
        if self.training.tf32 == TF32(
            False, False
        ):  # written as older cells have it, so that they keep their ids
            content["training"]["tf32"] = False
        if self.trained_by is None:
            del content["trained_by"]
        return content


@dataclass(frozen=True)
class Pair:
    """One restart of a comparison of times: ``sides`` take turns on the same devices.

    The first ``variants`` sides are the variant (several train one after the other, and their times
    add up), the others the baseline. A side has its group's id, and the restart as its seed.
    Training is timed or, with ``inference``, predicting the test set.
    """

    id: str
    seed: int
    sides: tuple[Cell, ...]
    variants: int = 1
    inference: bool = False

    @property
    def run(self) -> RunSettings:
        """The run settings, common to all sides."""
        return self.sides[0].run

    @property
    def stack(self) -> str:
        """The software stack, common to all sides."""
        return self.sides[0].stack

    @property
    def deployment(self) -> str:
        """The deployment, common to all sides."""
        return self.sides[0].deployment

    @property
    def dataset(self) -> Dataset:
        """The dataset, common to all sides."""
        return self.sides[0].dataset

    @classmethod
    def of(cls, content: dict[str, Any]) -> Pair:
        """Return the pair described by the JSON object ``content``, which is assumed valid."""
        sides = (Cell.of({**side, "run": content["run"]}) for side in content["sides"])
        fields = {key: content[key] for key in ("id", "seed", "variants", "inference")}
        return cls(sides=tuple(sides), **fields)

    def json(self) -> dict[str, Any]:
        """Return the content of cell.json."""
        sides = [side.json() for side in self.sides]
        for side in sides:
            del side["schema_version"], side["run"]
        fields = {"seed": self.seed, "variants": self.variants, "inference": self.inference}
        head = {"schema_version": SCHEMA_VERSION, "kind": "pair", "id": self.id}
        return {**head, **fields, "sides": sides, "run": self.run.json()}


def of(content: dict[str, Any]) -> Cell | Pair:
    """Return the cell or pair that is the content of a cell.json.

    Raises LookupError, TypeError, ValueError or AttributeError for any other content.
    """
    if content["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"schema_version {content['schema_version']}, not {SCHEMA_VERSION}")
    return (Pair if content.get("kind") == "pair" else Cell).of(content)


def read(path: str | os.PathLike[str]) -> Cell | Pair:
    """Read a cell or pair. Raises ParbenchError if the file is not one of this version."""
    content = read_json(Path(path))
    try:
        return of(content)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ParbenchError(
            f"{path}: not a cell of this version ({error}); run the workflow again "
            "to rewrite the file"
        ) from None
