"""Run one trial of a certificate: compare a strategy with eager training, on one batch.

The steps are those of the training loop itself. docs/equivalence.md describes what is compared.
"""

from __future__ import annotations

import gc
import itertools
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from parbench import files, models, strategies
from parbench.cell import TUNING, Cell, Strategy, Training
from parbench.data.tokens import Vocabulary
from parbench.equivalence.certificate import (
    ALSO_IN,
    BATCH,
    FROZEN,
    IN_HALF,
    LENGTH,
    LOCAL,
    SYNCHRONIZED,
)
from parbench.models._outline import outline
from parbench.strategies import _base
from parbench.strategies import _stages as stages
from parbench.training import set_up
from parbench.training.progress import Heartbeat
from parbench.training.run import Run

TAIL = 3  # so small that some ranks get no sample
# The steps: the batch, its tail, the batch again. Unless BatchNorm is frozen only the first is
# taken: in the tail a channel has so few values that rounding errors grow a millionfold, even in
# eager training.
STEPS = {FROZEN: 3, LOCAL: 1, SYNCHRONIZED: 1}
CLASSES = 10
WORDS = Vocabulary(size=50, pad=1, first=0, last=2)  # the vocabulary of texts
# In float32, with some batches, rounding moves a ReLU's input across zero or changes which value is
# the maximum, and gradients change by percents. A wrong computation differs with every batch.
BATCHES = {"float64": 1, "float32": 3, "bfloat16": 1}
# Errors are relative to at least this share of the largest tensor's norm: a gradient that is
# nothing but rounding has no meaningful relative error.
FLOOR = 1e-3
# With its initial variance, frozen BatchNorm changes nothing, and a hundred layers overflow.
FROZEN_VARIANCE = 4.0


@dataclass(frozen=True)
class Arithmetic:
    """The number format of a trial, and the ``bound`` on its error.

    The error is relative to eager training; in half precision, where rounding itself exceeds any
    useful bound, it is the share of matrix products that are not done in bfloat16.
    """

    dtype: torch.dtype  # of the weights
    precision: str  # of the cell
    bound: float


ARITHMETIC = {
    "float64": Arithmetic(torch.float64, "fp32", 1e-10),
    "float32": Arithmetic(torch.float32, "fp32", 1e-5),
    "bfloat16": Arithmetic(torch.float32, "bf16", 0.0),
}

Tensors = list[torch.Tensor]
Quantities = dict[str, Tensors]
Errors = dict[str, float | None]  # by quantity; None: not finite
TrialResult = Errors | str  # or why there are no errors


@dataclass(frozen=True)
class Trial:
    """A comparison of ``cell`` with eager training, in this arithmetic and BatchNorm mode, with the
    batch of this number."""

    cell: Cell
    arithmetic: str
    batch_norm: str
    batch: int = 1

    @classmethod
    def of(cls, cell: Cell, arithmetic: str, batch_norm: str) -> Trial:
        """Return the trial of ``cell``, replacing its own precision and BatchNorm rule."""
        rule = "local" if batch_norm == FROZEN else batch_norm
        precision = ARITHMETIC[arithmetic].precision
        training = replace(cell.training, batch_norm=rule, precision=precision)
        return cls(replace(cell, training=training), arithmetic, batch_norm)

    @classmethod
    def read(cls, content: dict) -> Trial:
        """Return the trial that `json` wrote."""
        return cls(**{**content, "cell": Cell.of(content["cell"])})

    def json(self) -> dict:
        """Return the trial as JSON, for another process."""
        return {**asdict(self), "cell": self.cell.json()}

    @property
    def in_half(self) -> bool:
        """Whether its matrix products are computed in half precision."""
        return ARITHMETIC[self.arithmetic].precision != "fp32"


# ---------------------------------------------------------------- what is certified


def trials_of(cell: Cell, precisions: Iterable[str], synchronized: bool) -> list[Trial]:
    """Return the trials of ``cell`` in these precisions, with BatchNorm as in training where it is
    equal to eager training's, and, if asked, synchronized."""
    strategy = strategies.of(cell)
    arithmetics = dict.fromkeys((strategy.EXACT, *(ALSO_IN[p] for p in precisions)))
    trials = [Trial.of(cell, name, FROZEN) for name in arithmetics]
    synchronizes = synchronized and strategy.data_parallel_size > 1
    if (strategy.equal_batch_norm or synchronizes) and has_batch_norm(cell):
        rule = LOCAL if strategy.equal_batch_norm else SYNCHRONIZED
        trials.append(Trial.of(cell, strategy.EXACT, rule))
    return trials


def has_batch_norm(cell: Cell) -> bool:
    """Return whether the BatchNorm rule changes what the cell's model computes."""
    model = cell.model
    inputs = WORDS if models.vocabulary(model.name) else cell.training.image_size
    blocks = outline(lambda: models.load(model.name).build(CLASSES, inputs, model.options))
    return any(isinstance(module, _BatchNorm) for module in blocks.modules())


# ---------------------------------------------------------------- one trial, on every rank


class Cast(nn.Module):
    """A layer that casts images to the trial's arithmetic. Tokens stay integers, and images that a
    library has cast itself, as DeepSpeed's engine does, stay as they are."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return [B, 3, S, S] float32 images in the dtype, [B, L] int64 tokens as they are."""
        return images.to(self.dtype) if images.dtype == torch.float32 else images


class TrialRun(Run):
    """The training loop in any arithmetic, with a model without randomness."""

    def __init__(self, trial: Trial, work: Path, strategy: _base.Strategy):
        self.trial = trial
        set_up.prepare(trial.cell)
        super().__init__(trial.cell, _data(work, trial), strategy, Heartbeat(strategy.rank))
        self.products: list[torch.dtype] = []
        frozen = trial.batch_norm == FROZEN
        for module in self.model.modules():
            # The wrapped model is watched, since torchgpipe replaces the model's layers.
            if isinstance(module, _BatchNorm):
                module.train(not frozen)
                if frozen and module.running_var is not None:
                    module.running_var.fill_(FROZEN_VARIANCE)
            if isinstance(module, stages.Stage):
                self._watch(module)

    def build(self) -> nn.Sequential:
        """Return the model in evaluation mode, so without dropout and stochastic depth."""
        dtype = ARITHMETIC[self.trial.arithmetic].dtype
        blocks, cast = super().build().to(dtype).eval(), Cast(dtype)
        return nn.Sequential(OrderedDict(cast=cast, **dict(blocks.named_children())))

    def _watch(self, stage: nn.Module) -> None:
        """Record the dtype of every matrix product of ``stage``, including recomputed ones."""
        for module in stage.modules():
            if isinstance(module, (nn.Linear, _ConvNd)):
                module.register_forward_hook(
                    lambda module, inputs, output: self.products.append(output.dtype)
                )

    def measure(self) -> Quantities:
        """Train the steps and return the tensors to compare, by quantity."""
        losses, gradients = [], []
        order = self.order(0)
        for step in range(STEPS[self.trial.batch_norm]):
            start, stop = self.bounds[step % len(self.bounds)]
            loss = self.step(order[start:stop], 0)
            # Like an epoch's loss, it is the mean over the ranks that share a batch.
            total = self.strategy.reduced([loss.item()], "sum")[0]
            losses.append(total / self.strategy.data_parallel_size)
            if step == 0:
                # After one step SGD's momentum equals the gradient, whichever rank holds which
                # part.
                state = self.strategy.optimizer_state(self.optimizer, self.parameters)
                gradients = [value.clone() for value in state.values()]
        quantities = {
            "loss": [torch.tensor(losses, dtype=torch.float64)],
            "gradients": gradients,
            "weights": self._full_tensors(self.parameters),
        }
        if self.trial.batch_norm != FROZEN:
            suffixes, buffers = ("running_mean", "running_var"), self.model.named_buffers()
            running = {name: buffer for name, buffer in buffers if name.endswith(suffixes)}
            quantities["running statistics"] = self._full_tensors(running)
        return quantities

    def _full_tensors(self, tensors: dict[str, torch.Tensor]) -> Tensors:
        """Return the whole model's tensors, in its order, given this rank's ``tensors``."""
        own = {name: value.detach() for name, value in tensors.items()}
        return list(self.strategy.full_tensors(own).values())

    def not_in_half(self) -> float:
        """Return the share of matrix products that were not computed in bfloat16."""
        half = self.products.count(torch.bfloat16)
        return 1 - half / len(self.products) if self.products else 1.0


def _data(work: Path, trial: Trial) -> Path:
    """Return the folder of a noise dataset of BATCH + TAIL samples for the model of ``trial``."""
    cell = trial.cell
    size, kind = cell.training.image_size, models.vocabulary(cell.model.name)
    folder = work / f"noise-{kind or size}-{trial.batch}"
    if folder.exists():
        return folder
    seed = size + 1000 * (trial.batch - 1)
    draw = partial(torch.randint, generator=torch.Generator().manual_seed(seed))
    metadata: dict = {"classes": [str(label) for label in range(CLASSES)]}
    if kind is None:
        metadata |= {"mean": [0.5] * 3, "std": [0.25] * 3}
    else:
        metadata["vocabularies"] = {kind: asdict(WORDS)}
    tensors = {}
    for part, count in (("train", BATCH + TAIL), ("test", 1)):
        if kind is None:
            tensors[f"{part}_images"] = draw(256, (count, 3, size, size), dtype=torch.uint8)
        else:
            ends = draw(1, LENGTH, (count,)).cumsum(0)
            tensors[f"{part}_offsets.{kind}"] = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
            tensors[f"{part}_tokens.{kind}"] = draw(3, WORDS.size, (int(ends[-1]),)).int()
        tensors[f"{part}_labels"] = draw(CLASSES, (count,))
    folder.mkdir()
    path = folder / "data.safetensors"
    save_file(tensors, path, {key: json.dumps(value) for key, value in metadata.items()})
    files.write_json(folder / "digest.json", {"sha256": files.sha256_file(path)})
    return folder


# ---------------------------------------------------------------- against eager training


def difference(found: Tensors, expected: Tensors) -> float:
    """Return the largest relative error of any tensor, by norm; infinite if one is not finite."""
    norms = [tensor.double().norm().item() for tensor in expected]
    least = FLOOR * max(norms) or 1.0
    errors = [
        (ours.cpu().double() - theirs.double()).norm().item() / max(norm, least)
        for ours, theirs, norm in zip(found, expected, norms, strict=True)
    ]
    return max(errors) if all(map(math.isfinite, errors)) else math.inf


def reference(trial: Trial, work: Path) -> Quantities:
    """Return what eager training computes, on one core, for ``trial``; cached in ``work``."""
    model = trial.cell.model.name.replace("/", "-")
    path = work / f"{model}-{trial.arithmetic}-{trial.batch_norm}-{trial.batch}.safetensors"
    if not path.exists():
        untuned = {key: getattr(Training, key) for key in TUNING}
        cell = replace(
            trial.cell,
            strategy=Strategy("eager", {}),
            hardware=replace(trial.cell.hardware, device="cpu", devices=1),
            training=replace(trial.cell.training, batch_norm="local", **untuned),
        )
        strategy = strategies.of(cell)
        strategy.setup()
        measured = TrialRun(replace(trial, cell=cell), work, strategy).measure()
        tensors = {
            f"{quantity}/{index:04d}": value.contiguous()
            for quantity, values in measured.items()
            for index, value in enumerate(values)
        }
        save_file(tensors, path)
    quantities: Quantities = {}
    for name, value in sorted(load_file(path).items()):
        quantities.setdefault(name.partition("/")[0], []).append(value)
    return quantities


def errors_of(trial: Trial, strategy: _base.Strategy, work: Path) -> dict[str, float]:
    """Return the errors of ``trial`` against eager training by quantity, the worst of all ranks."""
    run = TrialRun(trial, work, strategy)
    quantities = run.measure()
    if trial.in_half:
        errors = {IN_HALF: run.not_in_half()}
    else:
        expected = reference(trial, work)
        errors = {name: difference(values, expected[name]) for name, values in quantities.items()}
    return dict(zip(errors, strategy.reduced(list(errors.values()), "max"), strict=True))


def run_trials(
    todo: list[Trial], work: Path, out: Path, done: Callable[[], object] = lambda: None
) -> None:
    """Run every trial of ``todo`` on this rank; rank 0 writes the result of each to ``out``: errors
    by quantity, or why there are none. ``done`` is called after each.

    Consecutive trials with the same strategy and hardware share one setup of the strategy.
    """
    results: list[TrialResult] = []
    for _, group in itertools.groupby(todo, lambda trial: place(trial.cell)):
        trials = list(group)
        strategy = strategies.of(trials[0].cell)
        strategy.setup()
        for trial in trials:
            strategy.cell, strategy.model = trial.cell, trial.cell.model
            try:
                errors = errors_of(trial, strategy, work)
                # JSON has no infinity or NaN: they become None.
                results.append(
                    {
                        name: value if math.isfinite(value) else None
                        for name, value in errors.items()
                    }
                )
            except Exception as error:  # any error is the trial's result
                results.append(f"{type(error).__name__}: {error}".splitlines()[0])
                if strategy.world_size > 1:  # the other ranks would wait for this one
                    raise
            finally:
                if strategy.leads:
                    files.write_json(out, results)
            gc.collect()  # free the wrapped model before its process group (see strategies/ddp.py)
            done()
        strategy.close()


def place(cell: Cell) -> str:
    """Return a key of what a strategy is set up for: its options and hardware."""
    return files.canonical_json([asdict(cell.strategy), asdict(cell.hardware)])
