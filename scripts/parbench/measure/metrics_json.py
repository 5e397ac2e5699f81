"""Write metrics.json. No other module writes it; `results` reads it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parbench.cell import Cell, Pair
from parbench.files import read_record, write_json
from parbench.measure import clocks, environment, scores

if TYPE_CHECKING:
    import torch

SCHEMA_VERSION = 1


def weights_sha256(state: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of a model's weights and buffers: shapes, types and bytes, in order.

    Names are left out: they differ between strategies that hold the same weights.
    """
    import torch

    digest = hashlib.sha256()
    for value in state.values():
        value = value.detach().cpu().contiguous()
        digest.update(f"{value.dtype} {list(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def write(path: str | os.PathLike, metrics: dict) -> None:
    """Write metrics.json atomically."""
    write_json(path, {"schema_version": SCHEMA_VERSION, **metrics})


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
    """Write the result of a run; the ``status`` out_of_memory or diverged is a result, too.

    ``known``: the measured values by name; all others are written as null.
    """
    dataset = read_record(Path(data_folder) / "digest.json", "sha256")
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


def write_pair(
    path: str | os.PathLike,
    pair: Pair,
    slices: list[dict],
    sides: list[dict],
    started: str,
    status: str = "ok",
    reason: str | None = None,
    shared: bool = False,
) -> None:
    """Write the result of a pair: its ``slices`` in order, and each side's steps and environment.

    ``shared``: whether other jobs may have run on its nodes at the same time.
    """
    head = {"cell": pair.json(), "status": status, "reason": reason, "sides": sides}
    head |= {"slices": slices, "started": started, "finished": clocks.now()}
    write(path, head | ({"shared": True} if shared else {}))


def write_out_of_memory(
    path: str | os.PathLike,
    cell: Cell | Pair,
    reason: str,
    started: str,
    data_folder: str | os.PathLike,
    held: list[dict | None],
) -> None:
    """Write the result of a run that ran out of memory. ``held``: the image of each side."""
    if isinstance(cell, Cell):
        write_run(path, cell, "out_of_memory", reason, started, data_folder, image=held[0])
        return
    data = read_record(Path(data_folder) / "digest.json", "sha256")["sha256"]
    descriptions = [
        environment.describe(cell, data, image=image, side=side)
        for side, image in zip(cell.sides, held, strict=True)
    ]
    sides = [{"steps": None, "environment": description} for description in descriptions]
    write_pair(path, cell, [], sides, started, "out_of_memory", reason)
