"""Small cells for tests, trained by `parbench train` without the launcher."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from safetensors import safe_open

from parbench import strategies
from parbench.cell import Cell, Dataset, Hardware, Model, RunSettings, Strategy, Training
from parbench.plan.settings import defaults
from workspace import HANG_SECONDS, ROOT

TRAIN = ("scripts/bin/parbench", "train")
SMALL_SWIN = {
    "patch_size": 4,
    "embed_dim": 12,
    "depths": [1, 1],
    "num_heads": [2, 2],
    "window_size": 4,
    "stochastic_depth": 0,
}


def cell(strategy: str = "eager", devices: int = 1, model: str = "swin", **changes) -> Cell:
    """Return a cell on digits that trains in a second: SGD, two epochs, an uneven last batch.

    ``changes`` replace options of the strategy where it has them, else training settings.
    """
    module = strategies.load(strategy)
    options = {k: copy.deepcopy(part.get("default")) for k, part in module.OPTIONS.items()}
    settings = defaults()
    settings.update(
        epochs=2, global_batch=48, optimizer="sgd", schedule="constant", learning_rate=0.05
    )
    settings.update(train_samples=217, test_samples=101, min_tail=16)
    for key, value in changes.items():
        (options if key in options else settings)[key] = value
    model_options = SMALL_SWIN if model == "swin" else {}
    samples = {key: settings.pop(key) for key in ("train_samples", "test_samples")}
    return Cell(
        id=f"test.{model}.{strategy}",
        model=Model(model, model_options),
        strategy=Strategy(strategy, options),
        hardware=Hardware(f"cpu{devices}", "cpu", devices, threads=1, nodes=1, gpu_model=None),
        dataset=Dataset("digits", **samples),
        training=Training(**settings),
        stack="current",
        deployment="host",
        seed=0,
        run=RunSettings(
            timeout_seconds=HANG_SECONDS,
            checkpoint_seconds=300,
            grace_seconds=20,
            interface=None,
            connect_seconds=HANG_SECONDS,
        ),
    )


def altered(value: Cell, **changes) -> Cell:
    """Return ``value`` with fields of a part changed (``run={...}``) or replaced (``seed=1``)."""
    return replace(
        value,
        **{
            part: replace(getattr(value, part), **new) if isinstance(new, dict) else new
            for part, new in changes.items()
        },
    )


def starter(value: Cell) -> list[str]:
    """Return the command prefix that runs a program as the ranks of ``value``."""
    return [sys.executable, "tests/started.py", str(strategies.of(value).ranks_per_node)]


def start(
    value: Cell, data: Path, folder: Path, program: Sequence[str] = TRAIN, **variables: str
) -> subprocess.Popen:
    """Start training ``value`` in ``folder``, with as many ranks as its strategy has."""
    folder.mkdir(parents=True, exist_ok=True)
    cell_path, out = folder / "cell.json", folder / "metrics.json"
    cell_path.write_text(json.dumps(value.json()))
    command = [
        *starter(value),
        *program,
        "--cell",
        str(cell_path),
        "--data",
        str(data),
        "--out",
        str(out),
    ]
    usual = {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **usual, **variables},
    )


def run(value: Cell, data: Path, folder: Path, check: bool = True, **variables: str):
    """Train ``value``; return its metrics, or None, and the completed process."""
    process = start(value, data, folder, **variables)
    stdout, stderr = process.communicate(timeout=HANG_SECONDS)
    result = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    if check:
        assert result.returncode == 0, result.stdout + result.stderr
    out = folder / "metrics.json"
    return (json.loads(out.read_text()) if out.exists() else None), result


def learned(metrics: dict) -> dict:
    """Return what a repeated run must reproduce in deterministic mode."""
    losses = [(epoch["train_loss"], epoch["test_loss"]) for epoch in metrics["history"]]
    return {"losses": losses, **{key: metrics[key] for key in ("weights_sha256", "confusion")}}


def kept(folder: Path) -> dict | None:
    """Return the position ("kept") of the newest checkpoint in a cell's folder; None without."""
    newest = max((folder / "checkpoints").glob("*.safetensors"), default=None)
    if newest is None:
        return None
    with safe_open(newest, framework="pt") as file:
        return json.loads(file.metadata()["record"])["state"]["kept"]
