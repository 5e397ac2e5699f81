"""metrics.json: written here and nowhere else, and checked by its shape before it is trusted."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parbench import by_schema
from parbench.cell import Cell
from parbench.errors import ParbenchError
from parbench.files import read_json, write_json
from parbench.measure import clocks, environment, scores

if TYPE_CHECKING:
    import torch

SCHEMA_VERSION = 1


def weights_sha256(state: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of a model's weights and buffers: shapes, types and bytes, in their order.

    Not their names, which differ between strategies that hold the same weights.
    """
    import torch

    total = hashlib.sha256()
    for value in state.values():
        value = value.detach().cpu().contiguous()
        total.update(f"{value.dtype} {list(value.shape)}".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _check(value: Any, path: str | os.PathLike) -> None:
    try:
        by_schema.check(value, "metrics", str(path))
    except ParbenchError as error:
        raise ParbenchError(f"{error}; delete the file and run the cell again") from None


def read(path: str | os.PathLike) -> dict:
    """Read metrics.json, checked by its schema."""
    metrics = read_json(path)
    _check(metrics, path)
    return metrics


def write(path: str | os.PathLike, metrics: dict) -> None:
    """Write metrics.json whole or not at all, checked by its schema."""
    metrics = {"schema_version": SCHEMA_VERSION, **metrics}
    _check(metrics, path)
    write_json(path, metrics)


def write_run(
    path: str | os.PathLike,
    cell: Cell,
    status: str,
    reason: str | None,
    started: str,
    data_folder: str | os.PathLike,
    image: dict | None = None,
    **known: Any,
) -> None:
    """Write what came of a run. That it ended out_of_memory or diverged is a result, too.

    ``known`` holds what was measured; every other number is null.
    """
    dataset = read_json(Path(data_folder) / "digest.json")
    if "environment" not in known:
        known["environment"] = environment.describe(cell, dataset["sha256"], image=image)
    blank = dict.fromkeys(
        (
            "train_seconds",
            "steps_per_epoch",
            "samples_per_second",
            "startup_seconds",
            "energy_joules",
            "inference",
            "weights_sha256",
            "resumed_from",
        )
    )
    write(
        path,
        {
            "cell": cell.json(),
            "status": status,
            "reason": reason,
            **blank,
            **scores.NO_SCORES,
            "epoch_seconds": [],
            "warmup_steps": cell.training.warmup_steps,
            "peak_memory_mib": {"devices": [], "processes": []},
            "history": [],
            "started": started,
            "finished": clocks.now(),
            **known,
        },
    )
