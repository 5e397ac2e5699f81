"""The environment of a measurement: machine, software, code, data."""

from __future__ import annotations

import json
import os
import platform
from typing import TYPE_CHECKING, TypedDict

from parbench import interpreter, machine, packages, probe
from parbench.cell import Cell, Pair
from parbench.errors import ParbenchError
from parbench.git import GitState
from parbench.measure import provenance, steering

if TYPE_CHECKING:
    from parbench.measure.metrics_types import EnvironmentJson, InterpreterJson
    from parbench.probe import PythonFacts


class ImageFacts(TypedDict):
    """What is known of an image: its label, the versions in it and the SHA-256 of its file."""

    label: str
    python: str
    packages: dict[str, str]
    sha256: str


class HostFacts(GitState):
    """What cannot be seen inside an image."""

    os: str
    image: str | None
    image_digest: str | None


def describe(
    cell: Cell | Pair,
    dataset_digest: str,
    *,
    world_size: int | None = None,
    backend: str | None = None,
    cores: list[int] | None = None,
    image: ImageFacts | None = None,
    side: Cell | None = None,
) -> EnvironmentJson:
    """Return everything that a reader needs to judge or reproduce a measurement.

    ``image``: what `parbench images` knows about the cell's image, if called outside that image;
    ``side``: the side of a pair that is described.
    """
    python, installed = platform.python_version(), packages.installed()
    own: InterpreterJson | None = None
    if image is not None:
        python, image_packages = image["python"], image["packages"]
        installed = {
            name: image_packages[name] for name in packages.PACKAGES if image_packages.get(name)
        }
    host_json = os.environ.get("PARBENCH_HOST")  # set in a rank
    if cell.run.python is not None:
        found = probe.this_python() if host_json else interpreter.ask(cell.run.python).found
        python, own = found["version"], _interpreter(cell, found)
        known = found["packages"]
        installed = {name: known[name] for name in packages.PACKAGES if name in known}
    host_facts: HostFacts = json.loads(host_json) if host_json else host(image)
    machine_facts = machine.describe()
    machine_facts["os"] = host_facts["os"]
    uses_gpus = any(side.hardware.device == "cuda" for side in cell.sides)
    on_gpus = steering.of_gpus() if uses_gpus else {}
    code = provenance.code_of(cell)
    description: EnvironmentJson = {
        "stack": cell.stack,
        "deployment": cell.deployment,
        "python": python,
        "packages": installed,
        # No lock file applies to the packages of a Python of the user's own.
        "lock_mismatch": [] if own else packages.lock_mismatch(cell.stack, installed),
        "machine": machine_facts,
        "cores": cores if cores is not None else [],
        "steering": steering.of_cores(cores or os.sched_getaffinity(0)) | on_gpus,
        "world_size": world_size,
        "backend": backend,
        "image": host_facts["image"],
        "image_digest": host_facts["image_digest"],
        "git_commit": host_facts["git_commit"],
        "git_dirty": host_facts["git_dirty"],
        "code_digest": provenance.combined(code),
        "code": code,
        "dataset_digest": dataset_digest,
    }
    if own is not None:
        description["interpreter"] = own
    if side is not None:  # with this digest it is certified as if it were a cell
        description["side_digest"] = provenance.combined(provenance.code_of(side))
    return description


def _interpreter(cell: Cell | Pair, found: PythonFacts) -> InterpreterJson:
    """Return what is recorded about a Python of the user's own, which ``found`` describes.

    Raises ParbenchError if it is not the one that ``cell`` was planned for.
    """
    if probe.label(found) != cell.deployment:
        raise ParbenchError(
            f"{cell.run.python}: its packages ({probe.label(found)}) differ from those this run "
            f"was planned with ({cell.deployment}); run again to train with the installed ones"
        )
    return {"path": found["executable"], "records": found["records"], "torch": found["torch"]}


def host(image: ImageFacts | None) -> HostFacts:
    """Return {os, image, image_digest, git_commit, git_dirty}: what cannot be seen inside an image.

    The launcher passes it in PARBENCH_HOST. ``image`` is None for a cell that runs on the host.
    """
    return {
        "os": machine.operating_system(),
        "image": image and image["label"],
        "image_digest": image and image["sha256"],
        **provenance.git_state(),
    }
