"""Constructed studies for tests: plans, metrics.json files and tables with made-up numbers.

Nothing here was ever measured. Write it into a test's temporary folder only, never into results/
or docs/.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from parbench.__main__ import main
from parbench.plan.settings import defaults
from parbench.runs.metrics import METRICS
from parbench.verdicts.rows import NUMBERS

TRAINING = defaults() | {"epochs": 4, "global_batch": 64, "optimizer": "adamw"}
TRAINING |= {"learning_rate": 0.002, "weight_decay": 0.01, "schedule": "onecycle"}
for key in ("train_samples", "test_samples", "max_length"):  # go to `dataset`; for texts only
    del TRAINING[key]
# A plan's `work` entry for a group on one device.
WORK = {"ranks": 1, "micro_batches": 1, "learning_rate": 0.002, "pipeline_bound": None}
WORK["batch_norm"] = "the whole batch"
BATCH_NORM = dict.fromkeys(("ddp", "horovod"), "each rank's share")
BATCH_NORM["gpipe"] = "each micro-batch, running statistics updated 7 times a batch"
MACHINE = {"fingerprint": "0123456789ab", "cpu": "Constructed CPU", "cores": 2, "memory_mib": 24000}
MACHINE |= {"os": "Test OS 1", "kernel": "6.1", "accelerators": []}
ENVIRONMENT = {"stack": "current", "deployment": "host", "image": None, "image_digest": None}
ENVIRONMENT |= {"python": "3.11.7", "lock_mismatch": [], "cores": [0, 1], "backend": None}
ENVIRONMENT |= {"packages": {"torch": "2.15.0", "torchvision": "0.29.2", "torchgpipe": "0.0.7"}}
ENVIRONMENT |= {"git_commit": "0" * 40, "git_dirty": False, "dataset_digest": "da7a" * 16}
ENVIRONMENT |= {"code_digest": "c0de" * 16, "code": {"parbench.training.train": "ab" * 32}}


# --- one cell and one run of it -------------------------------------------------------------------


def make_hardware(device="cpu", devices=1, nodes=1, gpu_model=None, name=None, threads=1) -> dict:
    return {
        "name": name or f"{device}{devices}",
        "device": device,
        "devices": devices,
        "threads": threads,
        "nodes": nodes,
        "gpu_model": gpu_model,
    }


def make_cell(
    name: str,
    model: str,
    strategy: str,
    hardware: dict,
    *,
    options: dict | None = None,
    model_options: dict | None = None,
    **changes: Any,
) -> dict:
    """Return cell.json; ``options`` are the strategy's, ``changes`` replace top-level values."""
    return {
        "schema_version": 1,
        "id": name,
        "model": {"name": model, "options": model_options or {}},
        "strategy": {"name": strategy, "options": options or {}},
        "hardware": hardware,
        "dataset": {"name": "digits", "train_samples": None, "test_samples": None},
        "training": TRAINING,
        "seed": 0,
        "stack": "current",
        "deployment": "host",
        "run": {"timeout_seconds": 1800, "checkpoint_seconds": 300, "grace_seconds": 60}
        | {"interface": None, "connect_seconds": 120},
        **changes,
    }


def in_image(metrics: dict, digest: str = "51f" + "0" * 61) -> dict:
    """Make ``metrics`` a run in an image; as in parbench, Horovod has its own image."""
    cell, environment = metrics["cell"], metrics["environment"]
    name = "horovod" if cell["strategy"]["name"] == "horovod" else "torch"
    cell["deployment"] = environment["deployment"] = "apptainer"
    environment["image"], environment["image_digest"] = f"{name}-current-0123456789ab", digest
    return metrics


def make_metrics(cell: dict, status="ok", *, machine=None, environment=None, **changes) -> dict:
    """Return metrics.json of a run of ``cell``; ``changes`` replace top-level values.

    ``machine`` and ``environment`` replace single values of those entries.
    """
    ok = status == "ok"
    cuda = cell["hardware"]["device"] == "cuda"
    cards = [{"device": f"cuda:{i}", "rank": 0, "mib": 512.0 + i} for i in range(2 * cuda * ok)]
    shares = ("accuracy", "precision_macro", "recall_macro", "f1_macro", "specificity_macro")
    metrics = {
        "schema_version": 1,
        "cell": cell,
        "status": status,
        "reason": None if ok else "at step 3",
        "train_seconds": 100.0 if ok else None,
        "epoch_seconds": [20.0, 30.0] if ok else [],
        "warmup_steps": 2,
        "steps_per_epoch": 23,
        "samples_per_second": 940.0 if ok else None,
        "peak_memory_mib": {
            "devices": cards,
            "processes": [{"rank": rank, "mib": 800.0 + rank} for rank in range(2 * ok)],
        },
        "startup_seconds": 4.2 if ok else None,
        "energy_joules": None,
        **{f"test_{share}": 0.9 if ok else None for share in shares},
        "confusion": [[1000]] if ok else [],
        "inference": {"samples": 360, "seconds": 0.5} if ok else None,
        "weights_sha256": "3e" * 32 if ok else None,
        "history": [],
        "environment": ENVIRONMENT
        | {"machine": MACHINE | (machine or {}), "world_size": cell["hardware"]["devices"]}
        | (environment or {}),
        "started": "2030-01-01T07:00:00Z",
        "finished": "2030-01-01T07:01:00Z",
        "resumed_from": None,
        **changes,
    }
    return copy.deepcopy(metrics)


def make_pair(name: str, sides: list[dict], restart: int = 0) -> dict:
    """Return cell.json of a pair of two or more sides."""
    head = {"schema_version": 1, "kind": "pair", "id": name, "seed": restart, "variants": 1}
    bare = [{k: v for k, v in s.items() if k not in ("schema_version", "run")} for s in sides]
    return {**head, "inference": False, "sides": bare, "run": sides[0]["run"]}


def make_pair_metrics(pair: dict, status="ok", *, environment=None, seconds=()) -> dict:
    """Return metrics.json of a run of ``pair``.

    ``environment`` replaces values of each side's; ``seconds`` are one slice's time, by side.
    """
    slices = [
        {"pair": n, "side": side, "samples": 64, "seconds": each, "disturbed": False}
        | {"others": 0.0, "steal": 0.0, "waited": None}
        for n in range(4)
        for side, each in enumerate(seconds)
    ]
    sides = [make_metrics(side, environment=environment) for side in pair["sides"]]
    return {
        "schema_version": 1,
        "cell": pair,
        "status": status,
        "reason": None if status == "ok" else "at step 3",
        "sides": [{"steps": 4, "environment": side["environment"]} for side in sides],
        "slices": slices,
        "started": "2030-01-01T07:00:00Z",
        "finished": "2030-01-01T07:01:00Z",
    }


# --- a whole study --------------------------------------------------------------------------------

CPU1 = make_hardware()
CPU2 = make_hardware(devices=2)
A100X2 = make_hardware("cuda", 2, gpu_model="A100", name="a100x2")

GPIPE_NOTE = (
    "torchgpipe gives all CPU devices one worker: this is the cost of micro-batches, never a "
    "scaling result"
)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass
class Group:
    """One configuration: its entry in the plan and the measurements of its cells."""

    model: str
    variant: str
    hardware: dict
    seconds: float = 12.0
    accuracy: float = 0.93
    options: dict = field(default_factory=dict)
    status: str = "ok"
    reason: str | None = None
    not_run: str | None = None
    seeds: tuple[int, ...] = (0, 1, 2, 3)
    turns: tuple[float, ...] = ()  # speedup over eager, by restart of the pair
    equal: tuple[float, ...] = ()  # speedup over itself, likewise
    beside: dict = field(default_factory=dict)  # added to metrics.json of its pairs
    published: dict[str, float] = field(default_factory=dict)
    scaled: tuple[str, ...] = ()
    notes: dict[str, str] = field(default_factory=dict)
    epochs: int = 4
    phases: list[dict[str, float]] | None = None  # by rank, of a profiled run
    training: dict = field(default_factory=dict)  # replaces values of TRAINING
    train_samples: int | None = None
    measured: dict[str, list] = field(default_factory=dict)  # values of metrics.json, by seed
    machine: dict = field(default_factory=dict)
    told: dict = field(default_factory=dict)  # replaces entries of its plan

    @property
    def strategy(self) -> str:
        return self.variant.split("-")[0]

    @property
    def id(self) -> str:
        plain = "".join(c for c in self.model if c.isalnum()) or "model"
        own = digest(repr((self.model, self.hardware)))
        return f"{plain}.{self.variant}.{self.hardware['name']}-{own}"

    def cell_id(self, seed: int) -> str:
        name = "".join(c for c in self.id.rsplit("-", 1)[0] if c.isalnum() or c in "_.+-")
        return f"{name}.s{seed}-{digest(self.id)}"

    def cells(self) -> list[str]:
        return [self.cell_id(seed) for seed in self.seeds]

    def pairs(self) -> list[tuple[str, str, tuple[float, ...]]]:
        """Return the ids of its pairs, each with the baseline's variant and its ratios."""
        found = [(f"{self.id}.pair", "eager", self.turns)]
        found += [(f"{self.id}.equal", self.variant, self.equal)]
        return [pair for pair in found if pair[2]]


def usual_groups() -> list[Group]:
    """Return groups of every outcome: ok, not run, out of memory, diverged; published or not."""
    scaled, groups = ("epochs 4 instead of 50",), []
    halves, whole = {"balance": [1, 1], "chunks": 4}, {"balance": [2]}
    for model, base in (("resnet18", 12.0), ("resnet50", 21.0)):
        eager = {"train_seconds": 3384.0, "test_accuracy": 0.8353}
        piped = {"published": {"train_seconds": 2210.0, "speedup": 1.53}, "scaled": scaled}
        piped |= {"notes": {"speedup": GPIPE_NOTE}, "turns": (0.76, 0.77, 0.77, 0.78)}
        faster = {"published": {"speedup": 1.8}, "turns": (1.6, 1.61, 1.62, 1.62)}
        lacking = {"not_run": "needs 2x A100", "published": {"train_seconds": 1980.5}}
        groups += [
            Group(model, "eager", CPU1, base, published=eager, scaled=scaled),
            Group(model, "gpipe-1-1", CPU2, base * 1.3, 0.928, halves, **piped),
            Group(model, "ddp", CPU2, base * 0.62, 0.931, **faster),
            Group(model, "horovod", CPU2, base * 0.66, 0.929, turns=(1.5, 1.51, 1.5, 1.51)),
            Group(model, "gpipe-2", A100X2, options=whole, **lacking),
        ]
    full = {"status": "out_of_memory", "reason": "the kernel killed the process at 23.9 GiB"}
    nan = {"status": "diverged", "reason": "loss was NaN in epoch 2"}
    return [
        *groups,
        Group("swin", "eager", CPU1, published={"train_seconds": 7236.0}, **full),
        Group("swin", "ddp", CPU2, turns=(1.0,), **nan),
    ]


STUDY = """
title: Pipeline and data parallelism, constructed
description: Made-up numbers that exercise every kind of row.
citation:
  text: A. Author, B. Writer. A constructed paper. Journal of Tests, 2024.
  authors: [A. Author, B. Writer]
  year: 2024
  url: https://example.org/paper
dataset: digits
source_dataset: digits
override: {}
settings: {global_batch: 64, optimizer: adamw, precision: fp32}
assumed: {epochs: 50, learning_rate: 0.002}
tolerance: {relative: 0.05, accuracy: 0.01}
tables:
  - title: Table 1. Serial training
    caption: One device.
    variants: [eager]
    metrics: [test_accuracy, train_seconds]
    units: {train_seconds: min, test_accuracy: percent}
  - title: Table 2. Parallel training
    caption: Two devices.
    variants: [gpipe-1-1, gpipe-2, ddp, horovod]
    metrics: [test_accuracy, train_seconds, speedup]
    units: {}
"""


def usual_study(name: str = "constructed", **changes: Any) -> dict:
    """Return a plan's study, shaped as the paper's; ``changes`` replace keys."""
    study = yaml.safe_load(STUDY) | {"name": name, "published": name}
    return study | changes


def cell_json(group: Group, seed: int) -> dict:
    return make_cell(
        group.cell_id(seed),
        group.model,
        group.strategy,
        group.hardware,
        options=group.options,
        seed=seed,
        dataset={"name": "digits", "train_samples": group.train_samples, "test_samples": None},
        training=TRAINING
        | {"epochs": group.epochs, "profile": "phases" if group.phases else "none"}
        | group.training,
    )


def values(group: Group, seed: int) -> dict[str, float]:
    """Return the made-up measurements of one seed, by metric."""
    shift = (seed - 1.5) * 0.011
    seconds = group.seconds * (1 + shift)
    accuracy = group.accuracy + shift / 5
    shares = {"precision": 0.0011, "recall": -0.0007, "f1": -0.0002}
    return {
        "test_accuracy": accuracy,
        **{f"test_{name}_macro": accuracy + by for name, by in shares.items()},
        "test_specificity_macro": 0.99 + shift / 20,
        "train_seconds": seconds,
        "epoch_seconds": seconds / group.epochs,
        "samples_per_second": 1437 * group.epochs / seconds,
        "startup_seconds": 4.2 + shift,
        "peak_memory_process_mib": 812.0 * group.hardware["devices"] + 30 * shift,
    }


def metrics_json(group: Group, seed: int) -> dict:
    """Return metrics.json of one seed of a group."""
    # Apart, so that no cell shares the machine with another.
    begun = datetime(2030, 1, seed + 1, 8) + timedelta(minutes=int(digest(group.id), 16) % 600)
    usual = {"started": f"{begun:%FT%TZ}", "finished": f"{begun + timedelta(minutes=1):%FT%TZ}"}
    usual |= {"machine": group.machine} | ({"reason": group.reason} if group.reason else {})
    own = {name: each[group.seeds.index(seed)] for name, each in group.measured.items()}
    cell, status = cell_json(group, seed), own.pop("status", group.status)
    if status != "ok":
        return make_metrics(cell, status, **usual)
    measured = values(group, seed)
    each = measured["epoch_seconds"]
    history = [
        {"epoch": n, "train_loss": 2.3 / n, "learning_rate": 0.002 / n, "test_loss": 1.9 / n}
        | {"seconds": each, "elapsed_seconds": each * n}
        | {"samples_per_second": measured["samples_per_second"]}
        | {"test_accuracy": measured["test_accuracy"] * (1 - math.exp(-1.1 * n))}
        for n in range(1, group.epochs + 1)
    ]
    confusion = [[30 if i == j else (i * j) % 3 for j in range(10)] for i in range(10)]
    memory = {"rank": 0, "mib": measured.pop("peak_memory_process_mib")}
    measured["epoch_seconds"] = [each] * group.epochs
    if group.phases:
        names = list(group.phases[0])
        measured["profile"] = {
            "kind": "phases",
            "waiting_known": group.hardware["nodes"] == 1,
            "mean": {name: statistics.fmean(r[name] for r in group.phases) for name in names},
            "ranks": [{"rank": rank, **spent} for rank, spent in enumerate(group.phases)],
        }
    memory = {"devices": [], "processes": [memory]}
    measured |= {"peak_memory_mib": memory, "confusion": confusion, "history": history}
    return make_metrics(cell, **usual, **measured | own)


def plan_json(study: dict, groups: list[Group], deployment: str = "host") -> dict:
    """Return results/plan/<study>.json for these groups."""
    ids = {(group.model, group.variant): group.id for group in groups}
    usual = {"variants": 1, "inference": False}
    pairs = [
        {"id": pair, "model": group.model, "variant": group.variant, "baseline": other, **usual}
        | {"sides": [group.id, ids[group.model, other]], "not_run": group.not_run}
        | {"cells": [f"{pair}.r{restart}" for restart in range(len(ratios))]}
        | {"restarts": list(range(len(ratios)))}
        for group in groups
        for pair, other, ratios in group.pairs()
    ]
    plan = {"schema_version": 1, "study": study, "stack": "current", "deployment": deployment}
    plan |= {"arguments": ["--config", f"studies=[{study['name']}]"], "together": []}
    plan["groups"] = []
    for group in groups:
        cell = cell_json(group, group.seeds[0])
        told = ("id", "model", "variant", "strategy", "options", "hardware", "not_run")
        work = {"ranks": 2 if group.strategy in ("ddp", "horovod") else 1}
        work["micro_batches"] = group.options.get("chunks", 1)
        work["batch_norm"] = BATCH_NORM.get(group.strategy, "the whole batch")
        plan["groups"].append(
            {key: getattr(group, key) for key in told}
            | {"model_options": {}, "dataset": cell["dataset"], "training": cell["training"]}
            | {"seeds": list(group.seeds), "cells": group.cells()}
            | {"baseline": None if group.variant == "eager" else ids.get((group.model, "eager"))}
            | {"published": {"model": group.model, "strategy": group.variant}}
            | {"comparable": group.notes, "scaled": list(group.scaled), "work": WORK | work}
            | group.told
        )
    return plan | ({"pairs": pairs} if pairs else {})


def write_json(path: Path, value: Any) -> None:
    """Write ``value``; create missing parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def published_csv(study: dict, groups: list[Group]) -> str:
    """Return published.csv with the groups' published values, as measured on A100s."""
    lines = ["study,table,model,strategy,hardware,nodes,devices_per_node,metric,value,unit"]
    for group in groups:
        place = f"Table 1,{group.model},{group.variant},A100,1,{group.hardware['devices']}"
        for name, value in group.published.items():
            unit = METRICS[name].unit
            lines.append(f"{study['published']},{place},{name},{value},{unit}")
    # A source needs at least one row.
    return "\n".join([*lines, f"{study['published']},T,x,x,X,1,1,epoch_seconds,1,s"]) + "\n"


def make_table(plan: Path, cells: Path, out: Path, *more: object) -> Path:
    """Make a table; published.csv is the nearest one beside or above the plan."""
    folders = (plan.parent, *plan.parents)
    published = next(p for f in folders if (p := f / "published.csv").exists())
    words = ["--plan", plan, "--cells", cells, "--published", published, "--out", out, *more]
    main(["tables", *map(str, words)])
    return out


def read_table(path: Path) -> pd.DataFrame:
    """Read a table as someone would who knows nothing of parbench."""
    frame = pd.read_csv(path, keep_default_na=False)
    numbers = ["n_seeds", *NUMBERS, "published", "ratio"]
    frame[numbers] = frame[numbers].apply(pd.to_numeric, errors="coerce")
    return frame


def write_study(
    folder: Path,
    study: dict | None = None,
    groups: list[Group] | None = None,
    change: Callable[[dict], dict] = lambda metrics: metrics,
    log: str = "epoch 1\nepoch 2\ndone\n",
    deployment: str = "host",
    published: str = "",
) -> dict[str, Path]:
    """Write a whole constructed study under ``folder``, its table by tables.py.

    ``change`` may alter each metrics.json; ``deployment`` is the plan's; ``published`` is a CSV
    used instead of the groups' values. Returns the paths "plan", "table", "cells" and "published".
    """
    study = study or usual_study()
    groups = usual_groups() if groups is None else groups
    paths = {
        "plan": folder / "results" / "plan" / f"{study['name']}.json",
        "table": folder / "results" / "tables" / f"{study['name']}.csv",
        "cells": folder / "results" / "cells",
        "published": folder / "published.csv",
    }
    write_json(paths["plan"], plan_json(study, groups, deployment))
    paths["published"].write_text(published or published_csv(study, groups))
    for group in groups:
        for seed in () if group.not_run else group.seeds:
            cell = paths["cells"] / group.cell_id(seed)
            write_json(cell / "cell.json", cell_json(group, seed))
            write_json(cell / "metrics.json", change(metrics_json(group, seed)))
            (cell / "log.txt").write_text(log)
        for name, other, ratios in group.pairs():
            (baseline,) = (g for g in groups if (g.model, g.variant) == (group.model, other))
            sides = [cell_json(side, 0) for side in (group, baseline)]
            status = "ok" if group.status == "ok" else "out_of_memory"
            for restart, ratio in enumerate(ratios):
                pair = make_pair(f"{name}.r{restart}", sides, restart)
                on = {"environment": {"machine": MACHINE | group.machine}, "seconds": (1.0, ratio)}
                metrics = make_pair_metrics(pair, status, **on) | group.beside
                write_json(paths["cells"] / pair["id"] / "metrics.json", metrics)
    make_table(paths["plan"], paths["cells"], paths["table"])
    return paths
