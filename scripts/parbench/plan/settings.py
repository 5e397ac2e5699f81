"""Define the training settings of a cell, each described once."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import Field, PlainSerializer

from parbench import cell
from parbench.cell import Training
from parbench.errors import ParbenchError
from parbench.plan.strict_model import (
    AS_WRITTEN,
    NotNegative,
    Positive,
    Share,
    StrictModel,
    Whole,
    with_optional_fields,
)


class TF32Settings(StrictModel):
    """Which operations may use TensorFloat-32."""

    convolutions: bool = Field(cell.TF32.convolutions, description="convolutions, by cuDNN")
    matmul: bool = Field(cell.TF32.matmul, description="matrix products, by cuBLAS")


class Settings(StrictModel):
    """Settings of the training loop, and how much of the dataset it uses."""

    epochs: Whole = Field(description="passes over the training set")
    global_batch: Whole = Field(description="samples of one optimizer step over all ranks")
    min_tail: Whole = Field(
        Training.min_tail,
        description="if the last batch is smaller than this, it joins the batch before it, since "
        "models with BatchNorm need enough samples in every micro-batch",
    )
    optimizer: cell.Optimizer = Field(
        description="torch.optim's SGD with momentum, or AdamW, which without weight decay is Adam"
    )
    learning_rate: Positive = Field(description="peak learning rate, see learning_rate_rule")
    learning_rate_rule: cell.LearningRateRule = Field(
        Training.learning_rate_rule,
        description="fixed: the rate is used as stated; linear: it is multiplied by the "
        "data-parallel size (1 for gpipe), for a global batch that grows with it",
    )
    momentum: Share = Field(Training.momentum, description="momentum of sgd; adamw has its own")
    weight_decay: NotNegative = Field(
        Training.weight_decay, description="weight decay of the optimizer"
    )
    schedule: cell.Schedule = Field(
        description="schedule of the learning rate over the steps; for `step`, see "
        "learning_rate_steps"
    )
    learning_rate_steps: list[Positive] = Field(
        [],
        description="epochs after which `schedule: step` multiplies the learning rate, ascending",
    )
    learning_rate_factor: Positive = Field(
        Training.learning_rate_factor,
        description="factor by which `schedule: step` multiplies the learning rate",
    )
    learning_rate_warmup: NotNegative = Field(
        Training.learning_rate_warmup,
        description="epochs in which the rate first rises evenly to its peak, before the schedule",
    )
    label_smoothing: Share = Field(
        Training.label_smoothing, description="label smoothing of the cross-entropy"
    )
    batch_norm: cell.BatchNorm = Field(
        Training.batch_norm,
        description="what BatchNorm normalizes over in training: local (each rank's share of the "
        "batch, each micro-batch of GPipe) or synchronized (the global batch over all "
        "ranks)",
    )
    precision: cell.Precision = Field(
        Training.precision,
        description="fp32, or autocast to bf16 or fp16, entered inside each stage",
    )
    tf32: TF32Settings | bool = Field(
        cast(Any, asdict(cell.TF32())),  # as cells have it
        description="whether convolutions and matrix products on NVIDIA GPUs may use "
        "TensorFloat-32: true or false for both, or for each; the default is torch's",
    )
    memory_format: cell.MemoryFormat = Field(
        Training.memory_format,
        description="memory layout of weights and images; channels_last is for images only",
    )
    compile: cell.Compile = Field(
        Training.compile,
        description="mode of torch.compile for training and evaluation; compiling is timed apart "
        "(compile_seconds)",
    )
    fused: bool = Field(
        Training.fused, description="whether the optimizer uses torch's fused kernel"
    )
    cudnn_benchmark: bool = Field(
        Training.cudnn_benchmark,
        description="whether cuDNN tries its algorithms for each shape and takes the fastest, on "
        "NVIDIA GPUs",
    )
    gradient_accumulation: Whole = Field(
        Training.gradient_accumulation,
        description="micro-batches into which each rank cuts its share of a batch, one after the "
        "other; their gradients are added up, and exchanged once a step (by deepspeed's stages 2 "
        "and 3 after each)",
    )
    augment: bool = Field(
        Training.augment,
        description="random crops (padding 4) and flips",
    )
    normalization: cell.Normalization = Field(
        Training.normalization,
        description="mean and deviation of each channel that images are normalized by: dataset "
        "(those of the whole training set), imagenet (those of the images that most published "
        "weights were trained on), or none (pixels from 0 to 1)",
    )
    input: cell.Input = Field(
        Training.input,
        description="tensor: batches are cropped, flipped and resized at once, on the device, "
        "which holds the whole dataset; disk: the same, but images stay on disk, and a thread "
        "reads those of the next steps, for datasets larger than memory; "
        "pil: the same samples are made one by one by PIL and torchvision in the "
        "training process, as most published code does",
    )
    image_size: Annotated[int, Field(ge=8)] = Field(
        Training.image_size, description="side of the images that the model is given, in pixels"
    )
    max_length: Annotated[int, Field(ge=8)] | None = Field(
        Training.max_length,
        description="largest number of tokens of a text, including the first and last "
        "special token; null: the model takes images",
    )
    padding: cell.Padding = Field(
        Training.padding,
        description="padding of texts: longest (to the longest text of a rank's batch) or fixed "
        "(to max_length)",
    )
    warmup_steps: Annotated[int, Field(ge=0)] = Field(
        Training.warmup_steps,
        description="steps before the clock starts, whose effects are undone; plus one if the last "
        "batch of an epoch has a different size",
    )
    steps: Whole | None = Field(
        Training.steps,
        description="optimizer steps after which each epoch ends, to measure speed without "
        "accuracy; as many test batches are evaluated; null: the whole epoch",
    )
    evaluation_batch: Whole = Field(
        Training.evaluation_batch, description="test samples of one forward pass on a rank"
    )
    mode: cell.Mode = Field(
        Training.mode,
        description="performance, for times; or deterministic, for bit-identical results in every "
        "run, whose times are not judged",
    )
    profile: cell.Profile = Field(
        Training.profile,
        description="instrument from scripts/parbench/measure/profiling/: operators (torch's "
        "profiler, of inference), training_operators (of training steps), phases "
        "(where the seconds go); the times of such a cell are not judged",
    )
    train_samples: Whole | None = Field(
        None, description="class-balanced subset for training; null: all samples"
    )
    test_samples: Whole | None = Field(
        None, description="class-balanced subset for testing; null: all samples"
    )


class _Assumptions(Settings):
    pretrained: Literal[False] = Field(
        False, description="false: models start from weights drawn by the seed"
    )
    options: dict[str, dict[str, Any]] = Field(
        {}, description="options of strategies, by name; those of a variant override them"
    )


class StatedSettings(with_optional_fields(Settings)):
    """Some settings of the training loop, and how much of the dataset it uses."""


class StatedAssumptions(with_optional_fields(_Assumptions)):
    """Values assumed for settings that the source leaves open."""


# What a study may set for its cells, and what it may assume. The pydantic models only check the
# values: they stay mappings, so that spelling and order are kept.
if TYPE_CHECKING:
    Layer = dict[str, Any]
    Assumed = dict[str, Any]
else:
    Layer = Annotated[StatedSettings, AS_WRITTEN, PlainSerializer(dict)]
    Assumed = Annotated[StatedAssumptions, AS_WRITTEN, PlainSerializer(dict)]


def defaults() -> Layer:
    """Return the settings that have a default."""
    fields = Settings.model_fields.items()
    return {key: field.default for key, field in fields if not field.is_required()}


def resolved(layers: list[Layer], where: str) -> Layer:
    """Return all settings of a cell: the defaults, overridden by each of ``layers`` in turn.

    Raises ParbenchError for a setting that has no default and that no layer sets.
    """
    values = defaults()
    for layer in layers:
        values.update(layer)
    for key, field in Settings.model_fields.items():
        if key not in values:
            raise ParbenchError(
                f"{where}: the setting {key!r} is missing; set it under `settings`, or under "
                f"`assumed` if the source does not state it. `{key}`: {field.description}"
            )
    values["tf32"] = asdict(cell.TF32.of(values["tf32"]))
    return {key: values[key] for key in Settings.model_fields}
