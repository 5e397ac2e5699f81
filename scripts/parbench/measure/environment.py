"""The environment of a measurement: machine, software, code, data."""

from __future__ import annotations

import json
import os
import platform

from parbench import machine, packages
from parbench.cell import Cell, Pair
from parbench.measure import provenance


def describe(
    cell: Cell | Pair,
    dataset_digest: str,
    *,
    world_size: int | None = None,
    backend: str | None = None,
    cores: list[int] | None = None,
    image: dict | None = None,
) -> dict:
    """Return everything that a reader needs to judge or reproduce a measurement.

    ``image``: what scripts/images.py knows of the cell's image, if called outside of it.
    """
    python, found = platform.python_version(), packages.installed()
    if image is not None:
        python, held = image["python"], image["packages"]
        found = {name: held[name] for name in packages.PACKAGES if held.get(name)}
    told = os.environ.get("PARBENCH_HOST")
    outside = json.loads(told) if told else host(image)
    described = machine.describe()
    described["os"] = outside.pop("os")
    code = provenance.code_of(cell)
    return {
        "stack": cell.stack,
        "deployment": cell.deployment,
        "python": python,
        "packages": found,
        "lock_mismatch": packages.lock_mismatch(cell.stack, found),
        "machine": described,
        "cores": cores if cores is not None else [],
        "world_size": world_size,
        "backend": backend,
        **outside,
        "code_digest": provenance.combined(code),
        "code": code,
        "dataset_digest": dataset_digest,
    }


def host(image: dict | None) -> dict:
    """Return {os, image, image_digest, git_commit, git_dirty}: what cannot be seen inside an image.

    The launcher passes it in PARBENCH_HOST. ``image`` is None for a cell that runs on the host.
    """
    return {
        "os": machine.operating_system(),
        "image": image and image["label"],
        "image_digest": image and image["sha256"],
        **provenance.git_state(),
    }
