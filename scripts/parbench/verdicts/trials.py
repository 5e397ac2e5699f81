"""One trial of a certificate: a strategy against eager training, on one batch, on every rank.

The steps are those of the training loop itself. docs/equivalence.md says what is compared.
"""

from __future__ import annotations

import gc
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from parbench import files, models, strategies
from parbench.cell import Cell, Dataset, Hardware, Model, Run, Strategy, Training
from parbench.strategies import _stages as stages
from parbench.training import loop, train
from parbench.training.progress import Heartbeat
from parbench.verdicts.words import DIFFERS, EQUAL, MEASURED

BATCH, TAIL = 23, 3  # no number of ranks or micro-batches divides it; some ranks have no tail
RULES = ("local", "synchronized")
STEPS = 3  # the batch, its tail, the batch again
CLASSES = 10
# Norms below this share of the largest tensor's are compared with that: a gradient that is nothing
# but rounding has no relative error.
FLOOR = 1e-3
# As it was made, frozen BatchNorm changes nothing, and a hundred layers overflow.
FROZEN_VARIANCE = 4.0
HALF_ROUNDING = 2**-8  # bfloat16 has 8 binary digits
# Of what eager training's own roundings grow to, where that is more than the bound; and what would
# be no bound any more.
OWN_ROUNDINGS = 10
LOOSEST = 1e-5


@dataclass(frozen=True)
class Arithmetic:
    """Numbers to compute with: ``dtype`` of the weights, ``precision`` of the cell.

    ``bound``: of the relative error against eager training; in half precision, of the error
    against eager's float64, in units of eager's own.
    """

    dtype: torch.dtype
    precision: str
    bound: float

    @property
    def half(self) -> bool:
        """Whether rounding alone moves a gradient by more than any bound could allow."""
        return self.precision != "fp32"


EXACT = "float64"
ARITHMETIC = {
    EXACT: Arithmetic(torch.float64, "fp32", 1e-10),
    "float32": Arithmetic(torch.float32, "fp32", 1e-5),
    "bfloat16": Arithmetic(torch.float32, "bf16", 4.0),
}

# ---------------------------------------------------------------- what is certified


def cell_of(model: str, strategy: str, devices: int, options: dict) -> Cell:
    """A cell on ``devices`` cores that trains the small ``model``: what a trial runs."""
    module, small = strategies.load(strategy), models.load(model)
    defaults = {key: part.get("default") for key, part in module.OPTIONS.items()}
    usual = {key: part["default"] for key, part in small.OPTIONS.items()}
    return Cell(
        id=f"{model}.{strategy}",
        model=Model(model, usual | small.SMALL),
        strategy=Strategy(strategy, defaults | options),
        hardware=Hardware(f"cpu{devices}", "cpu", devices, threads=1, nodes=1, gpu_model=None),
        dataset=Dataset("noise", train_samples=None, test_samples=None),
        training=Training(
            epochs=1,
            global_batch=BATCH,
            warmup_steps=0,
            optimizer="sgd",
            schedule="constant",
            learning_rate=0.001,
        ),
        stack="current",
        deployment="host",
        seed=0,
        run=Run(300, 3600, grace_seconds=60, interface=None, connect_seconds=120),
    )


def trials_of(cell: Cell, precisions: Iterable[str], rules: Iterable[str]) -> list[dict]:
    """The trials that certify ``cell`` in these precisions, by these rules of BatchNorm."""
    wanted = [(EXACT, "frozen")]
    for precision in precisions:
        wanted += [
            (name, "frozen")
            for name, arithmetic in ARITHMETIC.items()
            if arithmetic.precision == precision
        ]
    if has_batch_norm(cell.model.name):
        # Synchronized in float64 alone: in float32 the few values that a channel has here make
        # rounding errors a thousandfold larger within three steps, in eager training, too.
        several = strategies.of(cell).data_parallel_size > 1
        wanted += [(EXACT, rule) for rule in rules if rule == "local" or several]
    return [trial_of(cell, *each) for each in dict.fromkeys(wanted)]


def trial_of(cell: Cell, arithmetic: str, batch_norm: str) -> dict:
    """The trial of ``cell`` in this arithmetic, by this rule of BatchNorm."""
    rule = "synchronized" if batch_norm == "synchronized" else "local"
    changed = {"batch_norm": rule, "precision": ARITHMETIC[arithmetic].precision}
    # A single sample has no statistics of its own: the tail then joins the batch.
    changed["min_tail"] = TAIL + 1 if batch_norm == "local" else 1
    return {
        "cell": replace(cell, training=replace(cell.training, **changed)),
        "arithmetic": arithmetic,
        "batch_norm": batch_norm,
        "backwards": False,  # the samples of a batch the other way round
    }


def has_batch_norm(model: str) -> bool:
    """Whether BatchNorm's rule changes what the model computes."""
    cell = cell_of(model, "eager", 1, {})
    with torch.device("meta"):
        blocks = models.load(model).build(CLASSES, cell.training.image_size, cell.model.options)
    return any(isinstance(module, _BatchNorm) for module in blocks.modules())


# ---------------------------------------------------------------- one trial, on every rank


class Cast(nn.Module):
    """The images, in the trial's own arithmetic."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[B, 3, S, S] float32 -> the same in another dtype."""
        return images.to(self.dtype)


class Trial(loop.Run):
    """The training loop with a model that draws nothing, in any arithmetic."""

    def __init__(self, trial: dict, data: Path, strategy: Any):
        self.trial = trial
        super().__init__(trial["cell"], data, strategy, Heartbeat(strategy.rank))
        self.products: list[torch.dtype] = []
        for module in self.model.modules():
            # As the strategy has it: torchgpipe puts layers of its own in place of the model's.
            if isinstance(module, _BatchNorm):
                module.train(trial["batch_norm"] != "frozen")
                if trial["batch_norm"] == "frozen":
                    module.running_var.fill_(FROZEN_VARIANCE)
            if isinstance(module, stages.Stage):
                self._watch(module)

    def build(self) -> nn.Sequential:
        """In evaluation: dropout and stochastic depth are off."""
        dtype = ARITHMETIC[self.trial["arithmetic"]].dtype
        blocks, cast = super().build().to(dtype).eval(), Cast(dtype)
        return nn.Sequential(OrderedDict(cast=cast, **dict(blocks.named_children())))

    def _watch(self, stage: nn.Module) -> None:
        """Note the dtype of every matrix product of ``stage``, also when it is computed again."""
        for module in stage.modules():
            if isinstance(module, (nn.Linear, _ConvNd)):
                module.register_forward_hook(
                    lambda module, inputs, output: self.products.append(output.dtype)
                )

    def measure(self) -> dict[str, list[torch.Tensor]]:
        """The steps, and what came of them, by quantity."""
        losses, gradients = [], []
        order = self.order(0)
        for number in range(STEPS):
            start, stop = self.bounds[number % len(self.bounds)]
            batch = order[start:stop]
            loss = self.step(batch.flip(0) if self.trial["backwards"] else batch, 0)
            # As an epoch's loss: the mean over the ranks that share a batch.
            total = (
                self.strategy.reduced([loss.item()], "sum")[0] / self.strategy.data_parallel_size
            )
            losses.append(total)
            if number == 0:
                gradients = self._whole(
                    {name: each.grad.clone() for name, each in self.parameters.items()}
                )
        found = {
            "loss": [torch.tensor(losses, dtype=torch.float64)],
            "gradients": gradients,
            "weights": self._whole(self.parameters),
        }
        if self.trial["batch_norm"] != "frozen":
            found["running statistics"] = self._whole(
                {
                    name: buffer
                    for name, buffer in self.model.named_buffers()
                    if name.endswith(("running_mean", "running_var"))
                }
            )
        return found

    def _whole(self, tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Those of the whole model, in its order, of which this rank has ``tensors``."""
        own = {name: value.detach() for name, value in tensors.items()}
        return list(self.strategy.whole(own).values())

    def not_in_half(self) -> float:
        """The share of matrix products that were not computed in bfloat16."""
        half = self.products.count(torch.bfloat16)
        return 1 - half / len(self.products) if self.products else 1.0


def _data(work: Path, cell: Cell) -> Path:
    """The folder of a dataset of noise, of BATCH + TAIL images in the size of the cell's."""
    size = cell.training.image_size
    folder = work / f"noise{size}"
    if folder.exists():
        return folder
    generator = torch.Generator().manual_seed(size)
    described = {"classes": [str(label) for label in range(CLASSES)]}
    described |= {"mean": [0.5] * 3, "std": [0.25] * 3}
    tensors = {}
    for part, number in (("train", BATCH + TAIL), ("test", 1)):
        shape = (number, 3, size, size)
        drawn = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        tensors[f"{part}_images"] = drawn
        tensors[f"{part}_labels"] = torch.randint(CLASSES, (number,), generator=generator)
    folder.mkdir()
    path = folder / "data.safetensors"
    save_file(tensors, path, {key: json.dumps(value) for key, value in described.items()})
    files.write_json(folder / "digest.json", {"sha256": files.sha256_file(path)})
    return folder


Tensors = list[torch.Tensor]


def difference(found: Tensors, expected: Tensors) -> float:
    """The largest relative error of any tensor, by its norm; infinite where one is no number."""
    norms = [norm(each) for each in expected]
    least = FLOOR * max(norms) or 1.0
    return _worst(
        norm(ours.double() - theirs.double()) / max(size, least)
        for ours, theirs, size in zip(found, expected, norms, strict=True)
    )


def difference_in_half(found: Tensors, expected: Tensors, exact: Tensors) -> float:
    """The largest error of any tensor against ``exact``, in units of that of ``expected``."""
    norms = [norm(each) for each in exact]
    least = FLOOR * max(norms)
    # One that hit the truth by chance has the error of a rounding.
    return _worst(
        norm(ours.double() - truth)
        / (max(norm(theirs.double() - truth), HALF_ROUNDING * max(size, least)) or 1.0)
        for ours, theirs, truth, size in zip(found, expected, exact, norms, strict=True)
    )


def norm(values: torch.Tensor) -> float:
    """Euclidean, in double precision."""
    return values.double().norm().item()


def _worst(errors: Iterable[float]) -> float:
    kept = list(errors)
    return max(kept) if all(map(math.isfinite, kept)) else math.inf


def _reference_path(work: Path, trial: dict) -> Path:
    name = trial["cell"].model.name
    order = "-backwards" if trial["backwards"] else ""
    return work / f"{name}-{trial['arithmetic']}-{trial['batch_norm']}{order}.safetensors"


def write_reference(work: Path, trial: dict) -> None:
    """What eager training computes in the place of ``trial``, once."""
    path = _reference_path(work, trial)
    if path.exists():
        return
    cell = trial["cell"]
    cell = replace(
        cell,
        strategy=Strategy("eager", {}),
        hardware=replace(cell.hardware, devices=1),
        training=replace(cell.training, batch_norm="local"),
    )
    train.prepare(cell)
    strategy = strategies.of(cell)
    strategy.setup()
    run = Trial({**trial, "cell": cell}, _data(work, cell), strategy)
    tensors = {
        f"{quantity}/{index:04d}": value.contiguous()
        for quantity, values in run.measure().items()
        for index, value in enumerate(values)
    }
    save_file(tensors, path)


def _reference(work: Path, trial: dict) -> dict[str, list[torch.Tensor]]:
    found: dict[str, list[torch.Tensor]] = {}
    for name, value in sorted(load_file(_reference_path(work, trial)).items()):
        found.setdefault(name.partition("/")[0], []).append(value)
    return found


def judged(trial: dict, errors: dict[str, float | None], work: Path) -> list[dict]:
    """Each quantity of ``trial`` with its error (None: no number), its bound and the verdict.

    Beyond the bound the error may be eager training's own: what ten times that allows is equal,
    up to where it would allow anything; there the difference is only measured.
    """
    arithmetic, own, rows = ARITHMETIC[trial["arithmetic"]], None, []
    for quantity, error in errors.items():
        bound: float | None = 0.0 if "products" in quantity else arithmetic.bound
        if trial["batch_norm"] == "local":
            bound = None
        elif error is not None and error > bound and not arithmetic.half:
            own = own or own_errors(trial, work)
            bound = max(bound, OWN_ROUNDINGS * own[quantity])
            bound = bound if bound <= LOOSEST or bound == arithmetic.bound else None
        rows.append({"quantity": quantity, **outcome(error, bound)})
    return rows


def own_errors(trial: dict, work: Path) -> dict[str, float]:
    """By how much eager training differs from itself in the place of ``trial``, by quantity.

    Synchronized BatchNorm by few values lets roundings grow: the samples of each batch the other
    way round are the same sums in another order. In float32 a rounding may turn a ReLU off, and
    then the gradient jumps: float64 shows where. In float64 and frozen nothing excuses anything.
    """
    expected = _reference(work, trial)
    found = expected
    if trial["batch_norm"] == "synchronized":
        other = {**trial, "backwards": True}
        write_reference(work, other)
        found = _reference(work, other)
    elif trial["arithmetic"] != EXACT:
        found = _reference(work, {**trial, "arithmetic": EXACT})
    return {name: difference(found[name], values) for name, values in expected.items()}


def errors_of(trial: dict, strategy: Any, work: Path) -> dict[str, float]:
    """By how much ``trial`` differs from eager training, by quantity, at worst over all ranks."""
    train.prepare(trial["cell"])
    run = Trial(trial, _data(work, trial["cell"]), strategy)
    found = run.measure()
    expected = _reference(work, trial)
    if ARITHMETIC[trial["arithmetic"]].half:
        exact = _reference(work, {**trial, "arithmetic": EXACT})
        errors = {
            name: difference_in_half(values, expected[name], exact[name])
            for name, values in found.items()
        }
        errors["products in float32"] = run.not_in_half()
    else:
        errors = {name: difference(values, expected[name]) for name, values in found.items()}
    return dict(zip(errors, strategy.reduced(list(errors.values()), "max"), strict=True))


def run_trials(
    todo: list[dict], work: Path, out: Path, done: Callable[[], object] = lambda: None
) -> None:
    """Every trial of ``todo``, on this rank; rank 0 writes what came of them to ``out``.

    What starts in processes of its own is set up once: its trials differ in arithmetic only.
    ``done`` hears of each that has ended.
    """
    results: list[dict] = []
    strategy: Any = None
    for trial in todo:
        if strategy is None or place(strategy.cell) != place(trial["cell"]):
            if strategy is not None:
                strategy.close()
            strategy = strategies.of(trial["cell"])
            strategy.setup()
        strategy.cell, strategy.model = trial["cell"], trial["cell"].model
        try:
            errors = errors_of(trial, strategy, work)
            # What is no number is None in JSON.
            known = {name: e if math.isfinite(e) else None for name, e in errors.items()}
            results.append({"errors": known})
        except Exception as error:  # whatever it is, it is the result
            results.append({"trouble": f"{type(error).__name__}: {error}".splitlines()[0]})
            if strategy.world_size > 1:  # the others wait for this rank
                raise
        finally:
            if strategy.leads:
                files.write_json(out, results)
        gc.collect()  # the wrapped model goes before its process group (see strategies/ddp.py)
        done()
    strategy.close()


def place(cell: Cell) -> list:
    """What a strategy is set up for."""
    return [asdict(cell.strategy), asdict(cell.hardware)]


def outcome(error: float | None, bound: float | None) -> dict:
    """An error (None: no number) with its bound (None: it is only measured) and the verdict."""
    good = error is not None and (bound is None or error <= bound)
    verdict = DIFFERS if not good else MEASURED
    if good and bound is not None:
        verdict = EQUAL
    return {"error": error, "bound": bound, "verdict": verdict, "reason": None}
