"""Write metrics.json. No other module writes it; `runs/records.py` reads it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from parbench.cell import Cell, Pair
from parbench.files import read_record, write_json
from parbench.measure import clocks, scores
from parbench.measure.environment import describe

if TYPE_CHECKING:
    import torch

    from parbench.measure.environment import ImageFacts
    from parbench.measure.metrics_types import (
        EnvironmentJson,
        MeasuredValues,
        PairRunJson,
        PairSideJson,
        RunJson,
        SliceJson,
        Status,
    )

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


def write(path: str | os.PathLike[str], metrics: RunJson | PairRunJson) -> None:
    """Write metrics.json atomically."""
    write_json(path, metrics)


def write_run(
    path: str | os.PathLike[str],
    cell: Cell,
    status: Status,
    reason: str | None,
    started: str,
    data_folder: str | os.PathLike[str],
    image: ImageFacts | None = None,
    environment: EnvironmentJson | None = None,
    extra: Mapping[str, float | None] | None = None,
    **known: Unpack[MeasuredValues],
) -> None:
    """Write the result of a run; the ``status`` out_of_memory or diverged is a result, too.

    ``environment``: where it ran, by default this process's, with the ``image``; ``known``: the
    measured values by name; every value not given is written as null; ``extra``: further metrics,
    such as those of Spark's engine.
    """
    dataset = read_record(Path(data_folder) / "digest.json", "sha256")
    described = environment or describe(cell, dataset["sha256"], image=image)
    run: RunJson = {
        "schema_version": SCHEMA_VERSION,
        "cell": cell.json(),
        "status": status,
        "reason": reason,
        "train_seconds": None,
        "steps_per_epoch": None,
        "samples_per_second": None,
        "startup_seconds": None,
        "energy_joules": None,
        "inference": None,
        "weights_sha256": None,
        "resumed_from": None,
        **scores.NO_SCORES,
        "epoch_seconds": [],
        "warmup_steps": cell.training.warmup_steps,
        "peak_memory_mib": {"devices": [], "processes": []},
        "history": [],
        "environment": described,
        "started": started,
        "finished": clocks.now(),
        **known,
    }
    write_json(path, {**run, **(extra or {})})


def write_pair(
    path: str | os.PathLike[str],
    pair: Pair,
    slices: list[SliceJson],
    sides: list[PairSideJson],
    started: str,
    status: Status = "ok",
    reason: str | None = None,
    shared: bool = False,
) -> None:
    """Write the result of a pair: its ``slices`` in order, and each side's steps and environment.

    ``shared``: whether other jobs may have run on its nodes at the same time.
    """
    run: PairRunJson = {
        "schema_version": SCHEMA_VERSION,
        "cell": pair.json(),
        "status": status,
        "reason": reason,
        "sides": sides,
        "slices": slices,
        "started": started,
        "finished": clocks.now(),
    }
    if shared:
        run["shared"] = True
    write(path, run)


def write_out_of_memory(
    path: str | os.PathLike[str],
    cell: Cell | Pair,
    reason: str,
    started: str,
    data_folder: str | os.PathLike[str],
    held: Sequence[ImageFacts | None],
) -> None:
    """Write the result of a run that ran out of memory. ``held``: the image of each side."""
    if isinstance(cell, Cell):
        write_run(path, cell, "out_of_memory", reason, started, data_folder, image=held[0])
        return
    data = read_record(Path(data_folder) / "digest.json", "sha256")["sha256"]
    sides: list[PairSideJson] = [
        {
            "steps": None,
            "environment": describe(cell, data, image=image, side=side),
        }
        for side, image in zip(cell.sides, held, strict=True)
    ]
    write_pair(path, cell, [], sides, started, "out_of_memory", reason)
