"""The training settings of a cell, each described once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer

from parbench.cell import Training
from parbench.errors import ParbenchError
from parbench.plan.model import AS_WRITTEN, Model, NotNegative, Positive, Share, Whole, stated_part


class Settings(Model):
    """Settings of the training loop, all explicit, and how much of its dataset it uses."""

    epochs: Whole = Field(description="passes over the training set")
    global_batch: Whole = Field(description="samples of one optimizer step over all ranks")
    min_tail: Whole = Field(
        Training.min_tail,
        description="a last batch smaller than this joins the batch before it, so that every "
        "micro-batch of every strategy has samples enough for BatchNorm",
    )
    optimizer: Literal["sgd", "adamw"] = Field(
        description="torch.optim's SGD with momentum or AdamW"
    )
    learning_rate: Positive = Field(
        description="peak learning rate, as learning_rate_rule reads it"
    )
    learning_rate_rule: Literal["fixed", "linear"] = Field(
        Training.learning_rate_rule,
        description="fixed: the rate is used as stated, whatever the number of ranks; linear: it "
        "is stated for one rank and multiplied by the data-parallel ranks (of gpipe 1), for a "
        "global batch that grows with them",
    )
    momentum: Share = Field(Training.momentum, description="of sgd; adamw has its own")
    weight_decay: NotNegative = Field(Training.weight_decay, description="of the optimizer")
    schedule: Literal["constant", "cosine", "onecycle"] = Field(
        description="learning rate over steps"
    )
    label_smoothing: Share = Field(Training.label_smoothing, description="of the cross-entropy")
    batch_norm: Literal["local", "synchronized"] = Field(
        Training.batch_norm,
        description="what BatchNorm normalises by in training: each rank's own share of the batch, "
        "and each micro-batch of GPipe (local), or the global batch over all ranks (synchronized)",
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        Training.precision, description="fp32, or autocast entered inside each stage"
    )
    tf32: bool = Field(
        Training.tf32, description="whether matrix products of an NVIDIA GPU may use TensorFloat-32"
    )
    memory_format: Literal["contiguous", "channels_last"] = Field(
        Training.memory_format,
        description="how weights and images lie in memory; channels_last is of images alone",
    )
    compile: Literal["none", "default", "max-autotune"] = Field(
        Training.compile,
        description="torch.compile of the model as it is trained and evaluated, by this mode; what "
        "compiling takes is compile_seconds, outside every clock",
    )
    fused: bool = Field(
        Training.fused, description="whether the optimizer's step is torch's fused kernel"
    )
    augment: bool = Field(
        Training.augment, description="random crop (padding 4) and flip; normalisation is always on"
    )
    input: Literal["tensor", "pil"] = Field(
        Training.input,
        description="tensor: batches are cut, flipped and resized at once, on the device; pil: the "
        "same samples one by one, by PIL and torchvision in the training process, as most "
        "published code does it",
    )
    image_size: Annotated[int, Field(ge=8)] = Field(
        Training.image_size, description="side of the images that the model sees"
    )
    max_length: Annotated[int, Field(ge=8)] | None = Field(
        Training.max_length,
        description="tokens of a text that the model sees, its first and its last one among them; "
        "null: the model sees images",
    )
    padding: Literal["longest", "fixed"] = Field(
        Training.padding,
        description="of texts: to the longest of a rank's batch, or always to max_length",
    )
    warmup_steps: Annotated[int, Field(ge=0)] = Field(
        Training.warmup_steps,
        description="steps before the clock starts, undone; a last batch of another size is one "
        "more",
    )
    steps: Whole | None = Field(
        Training.steps,
        description="optimizer steps after which each epoch ends; null: all, so that everything "
        "has been seen. With a number nothing is learned: speed is measured, over as many test "
        "batches too, and no accuracy",
    )
    evaluation_batch: Whole = Field(
        Training.evaluation_batch, description="test samples of one forward pass of a rank"
    )
    mode: Literal["performance", "deterministic"] = Field(
        Training.mode,
        description="performance is for times; deterministic gives the same bytes in every run, "
        "and its times are not judged",
    )
    profile: Literal["none", "operators", "training_operators", "phases"] = Field(
        Training.profile,
        description="scripts/parbench/measure/profiling/<profile>.py looks into the run: operators "
        "by torch's profiler, of inference beside the published ones, or of training steps, "
        "phases for where the seconds go. Such a cell is apart from the timed "
        "ones, its times are not judged",
    )
    train_samples: Whole | None = Field(
        None, description="class-balanced subset for training; null for all"
    )
    test_samples: Whole | None = Field(
        None, description="class-balanced subset for testing; null for all"
    )


class _Assumptions(Settings):
    __doc__ = Settings.__doc__

    pretrained: Literal[False] = Field(
        False, description="that models start from weights that the seed draws"
    )
    options: dict[str, dict[str, Any]] = Field(
        {}, description="of strategies, by name; those of a variant are laid over them"
    )


# What a study may set for its cells, and what it may assume; both keep spelling and order.
Layer = Annotated[stated_part("Layer", Settings), AS_WRITTEN, PlainSerializer(dict)]
Assumed = Annotated[stated_part("Assumed", _Assumptions), AS_WRITTEN, PlainSerializer(dict)]


def defaults() -> dict[str, Any]:
    """Return the settings that have a default."""
    fields = Settings.model_fields.items()
    return {key: field.default for key, field in fields if not field.is_required()}


def settled(layers: list[dict], where: str) -> dict[str, Any]:
    """Return all settings of a cell: later ``layers`` over earlier ones over the defaults.

    ParbenchError for a setting without default that no layer states.
    """
    values = defaults()
    for layer in layers:
        values.update(layer)
    for key, field in Settings.model_fields.items():
        if key not in values:
            raise ParbenchError(
                f"{where}: the setting {key!r} ({field.description}) is missing; state it under "
                "`settings`, or under `assumed` if the source leaves it open"
            )
    return {key: values[key] for key in Settings.model_fields}
