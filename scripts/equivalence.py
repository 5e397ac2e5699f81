"""Prove that strategies compute the same thing: each against eager training, on one batch.

    python scripts/equivalence.py --model resnet18 --out certificate.json

The batch has an uneven tail; the first step's gradients, three steps' losses and the weights after
them are compared. The steps are those of the training loop itself, in real processes of the
strategy's own launcher. Every strategy file states what of it is certified; `--plan` takes what the
cells of a study use instead. docs/equivalence.md says what is compared and how to read it.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from tqdm import tqdm

import certificate
import children
import config as configuration
import files
import machine
import measure
import models
import provenance
import stages
import strategies
import train
from errors import run_main
from progress import Pulse

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
LIMIT_SECONDS = 600  # for all ranks of one launch together
PROGRAM = Path(__file__)


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


def cell_of(model: str, strategy: str, devices: int, options: dict) -> dict:
    """A cell on ``devices`` cores that trains the small ``model``: what a trial runs."""
    module, small = strategies.load(strategy), models.load(model)
    defaults = {key: part.get("default") for key, part in module.OPTIONS.items()}
    usual = {key: part["default"] for key, part in small.OPTIONS.items()}
    training = configuration.schema("cell")["properties"]["training"]["properties"]
    settings = {key: part["default"] for key, part in training.items() if "default" in part}
    settings |= {"epochs": 1, "global_batch": BATCH, "warmup_steps": 0}
    settings |= {"optimizer": "sgd", "schedule": "constant", "learning_rate": 0.001}
    return {
        "model": {"name": model, "options": usual | small.SMALL},
        "strategy": {"name": strategy, "options": defaults | options},
        "hardware": {
            "name": f"cpu{devices}",
            "device": "cpu",
            "devices": devices,
            "threads": 1,
            "nodes": 1,
        },
        "dataset": {"train_samples": None, "test_samples": None},
        "training": settings,
        "seed": 0,
        "run": {"timeout_seconds": 300, "checkpoint_seconds": 3600},
    }


def trials_of(cell: dict, precisions: Iterable[str], rules: Iterable[str]) -> list[dict]:
    """The trials that certify ``cell`` in these precisions, by these rules of BatchNorm."""
    wanted = [(EXACT, "frozen")]
    for precision in precisions:
        wanted += [
            (name, "frozen")
            for name, arithmetic in ARITHMETIC.items()
            if arithmetic.precision == precision
        ]
    if has_batch_norm(cell["model"]["name"]):
        # Synchronized in float64 alone: in float32 the few values that a channel has here make
        # rounding errors a thousandfold larger within three steps, in eager training, too.
        several = strategies.load(cell["strategy"]["name"]).shares(cell) > 1
        wanted += [(EXACT, rule) for rule in rules if rule == "local" or several]
    return [_trial(cell, *each) for each in dict.fromkeys(wanted)]


def _trial(cell: dict, arithmetic: str, batch_norm: str) -> dict:
    rule = "synchronized" if batch_norm == "synchronized" else "local"
    changed = {"batch_norm": rule, "precision": ARITHMETIC[arithmetic].precision}
    # A single sample has no statistics of its own: the tail then joins the batch.
    changed["min_tail"] = TAIL + 1 if batch_norm == "local" else 1
    changed = {**cell, "training": cell["training"] | changed}
    return {
        "cell": changed,
        "arithmetic": arithmetic,
        "batch_norm": batch_norm,
        "backwards": False,  # the samples of a batch the other way round
    }


def has_batch_norm(model: str) -> bool:
    """Whether BatchNorm's rule changes what the model computes."""
    cell = cell_of(model, "eager", 1, {})
    with torch.device("meta"):
        blocks = models.load(model).build(CLASSES, _size(cell), cell["model"]["options"])
    return any(isinstance(module, _BatchNorm) for module in blocks.modules())


def _size(cell: dict) -> int:
    return cell["training"]["image_size"]


# ---------------------------------------------------------------- one trial, on every rank


class Cast(nn.Module):
    """The images, in the trial's own arithmetic."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[B, 3, S, S] float32 -> the same in another dtype."""
        return images.to(self.dtype)


class Trial(train.Run):
    """The training loop with a model that draws nothing, in any arithmetic."""

    def __init__(self, trial: dict, data: Path, strategy: Any):
        self.trial = trial
        super().__init__(trial["cell"], data, strategy, Pulse(strategy.rank))
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
            # As an epoch's loss: the mean over the shares.
            total = self.reduced([loss.item()], "sum")[0] / self.strategy.shares
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


def _data(work: Path, cell: dict) -> Path:
    """The folder of a dataset of noise, of BATCH + TAIL images in the size of the cell's."""
    size = cell["training"]["image_size"]
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
    name = trial["cell"]["model"]["name"]
    order = "-backwards" if trial["backwards"] else ""
    return work / f"{name}-{trial['arithmetic']}-{trial['batch_norm']}{order}.safetensors"


def write_reference(work: Path, trial: dict) -> None:
    """What eager training computes in the place of ``trial``, once."""
    path = _reference_path(work, trial)
    if path.exists():
        return
    cell, eager = trial["cell"], {"name": "eager", "options": {}}
    hardware = {**cell["hardware"], "devices": 1}
    training = {**cell["training"], "batch_norm": "local"}
    cell = {**cell, "strategy": eager, "hardware": hardware, "training": training}
    train.prepare(cell)
    strategy = strategies.load("eager").Strategy(cell)
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
        rows.append({"quantity": quantity, **_judged(error, bound)})
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
    return dict(zip(errors, run.reduced(list(errors.values()), "max"), strict=True))


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
        if strategy is None or _place(strategy.cell) != _place(trial["cell"]):
            if strategy is not None:
                strategy.close()
            strategy = strategies.load(trial["cell"]["strategy"]["name"]).Strategy(trial["cell"])
            strategy.setup()
        strategy.cell = trial["cell"]
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


def _place(cell: dict) -> list:
    """What a strategy is set up for."""
    return [cell["strategy"], cell["hardware"]]


# ---------------------------------------------------------------- all trials, in their processes


def certify(todo: list[dict], program: Path = PROGRAM) -> list[dict]:
    """The rows of a certificate: what came of every trial of ``todo``, in its order.

    ``program`` is what ranks run; a test gives one that errs.
    """
    results: dict[int, dict] = {}
    with (
        tempfile.TemporaryDirectory(prefix="parbench-") as folder,
        children.guarded(lambda: shutil.rmtree(folder, ignore_errors=True)),
        tqdm(total=len(todo), desc="certificate", unit=" trials", disable=None) as bar,
    ):
        work = Path(folder)
        own, launches = [], {}
        for index, trial in enumerate(todo):
            words = _words(trial["cell"])
            if words == [sys.executable]:
                own.append(index)
            else:
                place = files.canonical_json([words, *_place(trial["cell"])])
                launches.setdefault(place, (words, []))[1].append(index)
            for arithmetic in {EXACT, trial["arithmetic"]}:
                write_reference(work, _trial(trial["cell"], arithmetic, trial["batch_norm"]))

        def launch_all() -> None:
            for words, indices in launches.values():
                results.update(_launched([*words, str(program)], todo, indices, work))
                bar.update(len(indices))

        # What needs no processes of its own is computed here, beside those that are waited for.
        with ThreadPoolExecutor(1) as aside:
            others = aside.submit(launch_all)
            if own:
                chosen = [todo[index] for index in own]
                run_trials(chosen, work, work / "own.json", bar.update)
                results.update(zip(own, files.read_json(work / "own.json"), strict=True))
            others.result()
        return [
            row for index, trial in enumerate(todo) for row in _rows(trial, results[index], work)
        ]


def _words(cell: dict) -> list[str]:
    return strategies.load(cell["strategy"]["name"]).launcher(cell, sys.executable)


def _launched(words: list[str], todo: list[dict], indices: list[int], work: Path) -> dict:
    """What came of some of the trials, by index, run by the ranks that ``words`` start."""
    out = work / f"{indices[0]}.json"
    files.write_json(work / "todo.json", [todo[index] for index in indices])
    words += ["--work", str(work), "--out", str(out)]
    # More ranks than cores: they need not be quick.
    alone = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HOROVOD_GLOO_IFACE": "lo"}
    process = children.start(words, {**os.environ, **alone}, [])
    try:
        said, _ = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        said = b"no end"
    finally:
        children.kill_session(process)
        process.wait()
    found = files.read_json(out) if out.exists() else []
    if process.returncode != 0 or len(found) < len(indices):
        said = said.decode(errors="replace").replace("ChildFailedError", "")
        lines = [line for line in said.splitlines() if "Error: " in line]
        trouble = {"trouble": lines[-1].strip() if lines else f"status {process.returncode}"}
        found += [trouble] * (len(indices) - len(found))
    return dict(zip(indices, found, strict=True))


def _rows(trial: dict, result: dict, work: Path) -> list[dict]:
    cell = trial["cell"]
    row = {
        **certificate.combination(cell),
        "arithmetic": trial["arithmetic"],
        "batch_norm": trial["batch_norm"],
        "code": provenance.combined(provenance.code_of(cell)),
    }
    if "trouble" in result:
        return [{**row, "quantity": "all", **_judged(None, 0.0), "reason": result["trouble"]}]
    return [row | each for each in judged(trial, result["errors"], work)]


def _judged(error: float | None, bound: float | None) -> dict:
    good = error is not None and (bound is None or error <= bound)
    verdict = certificate.DIFFERS if not good else certificate.MEASURED
    if good and bound is not None:
        verdict = certificate.EQUAL
    return {"error": error, "bound": bound, "verdict": verdict, "reason": None}


# ---------------------------------------------------------------- the program


def whole_matrix(chosen: list[str]) -> list[dict]:
    """The trials of ``chosen`` models with all that every strategy states."""
    cells = [
        cell_of(model, strategy, devices, options)
        for model in chosen
        for strategy in configuration.modules("strategies")
        for devices, options in strategies.load(strategy).certified()
    ]
    return _distinct(trials_of(cell, certificate.ALSO_IN, RULES) for cell in cells)


def of_plans(plans: Iterable[Path], place: str) -> list[dict]:
    """The trials of what the cells in ``plans`` use, of those that run in ``place``."""
    return _distinct(
        trials_of(
            cell_of(each["model"], each["strategy"], each["devices"], each["options"]),
            {each["precision"]} & set(certificate.ALSO_IN),
            [each["batch_norm"]],
        )
        for each in certificate.wanted(map(files.read_json, plans), place)
    )


def _distinct(trials: Iterable[list[dict]]) -> list[dict]:
    return list({files.digest(each): each for some in trials for each in some}.values())


def shown(rows: list[dict]) -> str:
    """The certificate in short, as a table; below it, all that differs."""
    head = ["model", "strategy", "arithmetic", "BatchNorm", "of", *certificate.QUANTITIES]
    lines = [[*head, "bound", "verdict"]]
    for each in certificate.summary(rows):
        line = [each[key] for key in ("model", "strategy", "arithmetic", "batch_norm")]
        errors = [each["errors"].get(quantity, "") for quantity in certificate.QUANTITIES]
        lines.append([*line, str(each["combinations"]), *errors, each["bound"], each["verdict"]])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(f"{word:<{width}}" for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    text += [
        f"differs: {row['model']}, {row['strategy']} {json.dumps(row['options'])} on "
        f"{row['devices']}: {certificate.said(row)}"
        for row in rows
        if row["verdict"] == certificate.DIFFERS
    ]
    return "\n".join(text)


def main() -> int:
    """The command line: 1 where something differs from eager training."""
    known = configuration.modules("models")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--model", action="append", choices=known, help="default: all")
    what.add_argument("--plan", type=Path, nargs="+", help="what these plans of studies use")
    parser.add_argument("--place", default=certificate.HOST, help="label of the image it runs in")
    parser.add_argument("--out", type=Path, help="certificate to write")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)  # this is a rank of a trial
    arguments = parser.parse_args()
    if arguments.work is not None:
        run_trials(files.read_json(arguments.work / "todo.json"), arguments.work, arguments.out)
        return 0
    if arguments.plan is not None:
        todo = of_plans(arguments.plan, arguments.place)
    else:
        todo = whole_matrix(arguments.model or known)
    rows = certify(todo)
    print(shown(rows))
    if arguments.out is not None:
        about = {"python": sys.version.split()[0], "packages": measure.packages()}
        about["machine"] = machine.describe()
        made = certificate.write(arguments.out, arguments.place, about, rows)
        print(f"{arguments.out}: digest {made['digest']}")
    # Of a study's cells the report says it: a strategy may be meant to differ.
    bad = any(row["verdict"] == certificate.DIFFERS for row in rows)
    return int(bad and arguments.plan is None)


if __name__ == "__main__":
    run_main(main)
