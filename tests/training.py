"""Small cells for tests, and the loop started by hand."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import cells
import config
import strategies

ROOT = Path(__file__).resolve().parent.parent
SMALL_SWIN = {
    "patch_size": 4,
    "embed_dim": 12,
    "depths": [1, 1],
    "num_heads": [2, 2],
    "window_size": 4,
    "stochastic_depth": 0,
}


def cell(strategy: str = "eager", devices: int = 1, model: str = "swin", **changes) -> dict:
    """A cell on digits that trains in a second: SGD, two epochs, an uneven tail.

    ``changes`` go to the training settings, or to the strategy's options when they are one.
    """
    module = strategies.load(strategy)
    options = {k: copy.deepcopy(part.get("default")) for k, part in module.OPTIONS.items()}
    schema = config.settings_schema()
    settings = {key: part["default"] for key, part in schema.items() if "default" in part}
    settings.update(
        epochs=2, global_batch=48, optimizer="sgd", schedule="constant", learning_rate=0.05
    )
    settings.update(train_samples=217, test_samples=101, min_tail=16)
    for key, value in changes.items():
        (options if key in options else settings)[key] = value
    model_options = SMALL_SWIN if model == "swin" else {}
    template = {
        "schema_version": cells.CELL_SCHEMA_VERSION,
        "id": f"test.{model}.{strategy}",
        "model": {"name": model, "options": model_options},
        "strategy": {"name": strategy, "options": options},
        "hardware": {
            "name": f"cpu{devices}",
            "device": "cpu",
            "devices": devices,
            "threads": 1,
            "nodes": 1,
            "gpu_model": None,
        },
        "dataset": {
            "name": "digits",
            **{key: settings.pop(key) for key in ("train_samples", "test_samples")},
        },
        "training": settings,
        "seed": 0,
        "stack": "current",
        "deployment": "host",
        "run": {
            "timeout_seconds": 120,
            "checkpoint_seconds": 300,
            "grace_seconds": 20,
            "interface": None,
            "connect_seconds": 30,
        },
    }
    config.check(template, "cell", "test cell")
    return template


def start(
    value: dict, data: Path, folder: Path, program: str = "scripts/train.py", **variables: str
) -> subprocess.Popen:
    """Start training ``value`` in ``folder`` through its strategy's launcher."""
    folder.mkdir(parents=True, exist_ok=True)
    cell_path, out = folder / "cell.json", folder / "metrics.json"
    cell_path.write_text(json.dumps(value))
    command = strategies.load(value["strategy"]["name"]).launcher(value, sys.executable)
    command += [
        program,
        "--cell",
        str(cell_path),
        "--data",
        str(data),
        "--out",
        str(out),
    ]
    usual = {"OMP_NUM_THREADS": "1", "PARBENCH_PROGRESS": "lines"}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **usual, **variables},
    )


def run(value: dict, data: Path, folder: Path, check: bool = True, **variables: str):
    """Train ``value`` through its strategy's launcher; (metrics or None, the process)."""
    process = start(value, data, folder, **variables)
    stdout, stderr = process.communicate(timeout=300)
    result = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    if check:
        assert result.returncode == 0, result.stdout + result.stderr
    out = folder / "metrics.json"
    return (json.loads(out.read_text()) if out.exists() else None), result
