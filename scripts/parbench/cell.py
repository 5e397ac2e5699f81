"""Define a cell, as stored in cell.json: one configuration with one seed, or a pair of them.

The launcher and the training processes read it; the plan writes it. Standard library only.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict, final

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
Fields = dict[str, Any]  # in JSON, the fields of one of the classes below

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
    def tuned(self) -> dict[str, object]:
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

    def json(self) -> Fields:
        """Return the JSON object for cell.json, with `python` only if it is set."""
        content = asdict(self)
        if self.python is None:
            del content["python"]
        return content


class ModelJson(TypedDict):
    """`model` of cell.json; without `pretrained`, the seed draws the weights."""

    name: str
    options: Options
    pretrained: NotRequired[Fields]


class SideJson(TypedDict):
    """A cell in JSON; as a side of a pair it has no more than this."""

    id: str
    model: ModelJson
    strategy: Fields
    hardware: Fields
    dataset: Fields
    training: Fields
    stack: str
    deployment: str
    seed: int
    trained_by: NotRequired[str]


@final
class CellJson(SideJson):
    """The content of cell.json of a cell."""

    schema_version: int
    run: Fields


class PairJson(TypedDict):
    """The content of cell.json of a pair."""

    schema_version: int
    kind: Literal["pair"]
    id: str
    seed: int
    variants: int
    inference: bool
    sides: list[SideJson]
    run: Fields


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
    def of(cls, content: CellJson) -> Cell:
        """Return the cell described by the JSON object ``content``, which is assumed valid."""
        return cls.of_side(content, content["run"])

    @classmethod
    def of_side(cls, content: SideJson, run: Fields) -> Cell:
        """Return the cell described by ``content``, with the settings ``run`` of its pair."""
        model: Fields = {**content["model"]}
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
            run=RunSettings(**run),
            trained_by=content.get("trained_by"),
        )

    def json(self) -> CellJson:
        """Return the content of cell.json."""
        content: CellJson = {
            "schema_version": SCHEMA_VERSION,
            **self._side(),
            "run": self.run.json(),
        }
        if self.trained_by is not None:
            content["trained_by"] = self.trained_by
        return content

    def side_json(self) -> SideJson:
        """Return the entry of this side in its pair's cell.json."""
        content = self._side()
        if self.trained_by is not None:
            content["trained_by"] = self.trained_by
        return content

    def _side(self) -> SideJson:
        return {
            "id": self.id,
            "model": self._model(),
            "strategy": asdict(self.strategy),
            "hardware": asdict(self.hardware),
            "dataset": asdict(self.dataset),
            "training": self._training(),
            "stack": self.stack,
            "deployment": self.deployment,
            "seed": self.seed,
        }

    def _model(self) -> ModelJson:
        model: ModelJson = {"name": self.model.name, "options": asdict(self.model)["options"]}
        if self.model.pretrained is not None:
            model["pretrained"] = asdict(self.model.pretrained)
        return model

    def _training(self) -> Fields:
        training = asdict(self.training)
        if self.training.max_length is None:
            del training["max_length"], training["padding"]
        for key in IMPLIED:
            if training[key] == getattr(Training, key):
                del training[key]
        if self.training.tf32 == TF32(
            False, False
        ):  # written as older cells have it, so that they keep their ids
            training["tf32"] = False
        return training


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
    def of(cls, content: PairJson) -> Pair:
        """Return the pair described by the JSON object ``content``, which is assumed valid."""
        return cls(
            content["id"],
            content["seed"],
            tuple(Cell.of_side(side, content["run"]) for side in content["sides"]),
            content["variants"],
            content["inference"],
        )

    def json(self) -> PairJson:
        """Return the content of cell.json."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "pair",
            "id": self.id,
            "seed": self.seed,
            "variants": self.variants,
            "inference": self.inference,
            "sides": [side.side_json() for side in self.sides],
            "run": self.run.json(),
        }


def of(content: CellJson | PairJson) -> Cell | Pair:
    """Return the cell or pair that is the content of a cell.json.

    Raises LookupError, TypeError, ValueError or AttributeError for any other content.
    """
    if content["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"schema_version {content['schema_version']}, not {SCHEMA_VERSION}")
    return Pair.of(content) if "sides" in content else Cell.of(content)


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
