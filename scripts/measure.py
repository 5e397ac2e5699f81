"""What is measured and how it is written: clocks, memory, energy, environment, metrics.json.

metrics.json is written here and nowhere else, and checked here by its shape,
rules/schemas/metrics.schema.yaml, before a table or a report trusts it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import resource
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import machine
import provenance
from errors import ParbenchError
from files import read_json, write_json

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).resolve().parent.parent
SCHEMA_VERSION = 1
# Packages whose version can change a measurement.
PACKAGES = (
    *("torch", "torchvision", "timm", "torchgpipe", "horovod"),
    *("numpy", "scikit-learn", "safetensors"),
)


def now() -> str:
    """The time in UTC, as ISO 8601 with seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pin(local_rank: int, processes: int) -> list[int]:
    """Bind this process to its part of the cores that the launcher leased: those of its devices of
    kind cpu, or one for each process that drives GPUs, which share them where there are fewer.

    Returns the cores. Without PARBENCH_CORES (train.py started by hand) nothing is bound.
    """
    leased = os.environ.get("PARBENCH_CORES")
    if not leased:
        return sorted(os.sched_getaffinity(0))
    cores = [int(core) for core in leased.split(",")]
    if processes > 1:
        each = max(1, len(cores) // processes)
        first = local_rank * each % len(cores)
        cores = cores[first : first + each]
    os.sched_setaffinity(0, cores)
    return cores


def synchronize(devices: list[torch.device]) -> None:
    """Wait until every device has done its work, so that a clock may be read."""
    import torch

    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


class Stopwatch:
    """Seconds of work on ``devices``: both ends of the clock wait for all of them."""

    def __init__(self, devices: list[torch.device]):
        self.devices = devices
        self.seconds = 0.0

    def __enter__(self) -> Stopwatch:
        synchronize(self.devices)
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        synchronize(self.devices)
        self.seconds = time.perf_counter() - self._start


def reset_peak_memory(devices: list[torch.device]) -> None:
    """Forget the peak that accelerators reached so far: in warm-up, in writing a checkpoint."""
    import torch

    for device in devices:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)


def peak_memory_mib(devices: list[torch.device]) -> tuple[float, list[float]]:
    """Peak resident memory of this process and peak allocation on each accelerator, in MiB."""
    import torch

    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux
    accelerators = [
        torch.cuda.max_memory_allocated(device) / 2**20
        for device in devices
        if device.type == "cuda"
    ]
    return process, accelerators


class Energy:
    """Energy of this process's accelerators, from NVML's own counters.

    ``joules()`` is None where no counter can be read. A processor's counter covers the whole
    package, other cells included, so that no CPU cell has an energy.
    """

    def __init__(self, devices: list[torch.device]):
        self._uuids = _gpu_uuids(devices)
        self._start = self._read()

    def joules(self) -> float | None:
        """Joules since this object was made."""
        end = self._read()
        return None if self._start is None or end is None else (end - self._start) / 1000

    def _read(self) -> int | None:
        if not self._uuids:
            return None
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in self._uuids]
            return sum(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles)
        except pynvml.NVMLError:  # old GPUs and virtual ones have no counter
            return None


def _gpu_uuids(devices: list[torch.device]) -> list[str]:
    import torch

    uuids = []
    for device in devices:
        if device.type == "cuda":
            uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
            if not uuid:  # torch 2.1 does not tell it
                return []
            uuids.append(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
    return uuids


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


# What differs between two runs of a cell that did the same.
_OF_ONE_RUN = {
    "train_seconds",
    "epoch_seconds",
    "samples_per_second",
    "inference",
    "startup_seconds",
    "energy_joules",
    "peak_memory_mib",
    "started",
    "finished",
    "resumed_from",
    "environment",
    "beside",
    "profile",
}
_OF_ONE_EPOCH = {"seconds", "elapsed_seconds", "samples_per_second"}


def learned(metrics: Mapping[str, Any]) -> dict:
    """What a repeated run of the cell must give again in deterministic mode: all but clocks,
    memory, dates, places and interruptions.
    """
    kept = {key: value for key, value in metrics.items() if key not in _OF_ONE_RUN}
    kept["history"] = [
        {key: value for key, value in entry.items() if key not in _OF_ONE_EPOCH}
        for entry in metrics["history"]
    ]
    return kept


# Of a run that was not tested.
NO_SCORES: dict[str, Any] = {
    "test_accuracy": None,
    "test_precision_macro": None,
    "test_recall_macro": None,
    "test_f1_macro": None,
    "test_specificity_macro": None,
    "confusion": [],
}


def classification(truth: Any, predicted: Any, classes: int) -> dict:
    """Accuracy, macro precision, recall, F1 and specificity, and the confusion matrix.

    ``truth`` and ``predicted`` are integer arrays [N]; rows of the matrix are true classes.
    Specificity of a class is the recall of "not this class".
    """
    from sklearn import metrics

    labels = list(range(classes))
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(
        truth, predicted, labels=labels, average="macro", zero_division=0
    )
    specificity = [
        metrics.recall_score(truth == label, predicted == label, pos_label=False, zero_division=0)
        for label in labels
    ]
    return {
        "test_accuracy": float(metrics.accuracy_score(truth, predicted)),
        "test_precision_macro": float(precision),
        "test_recall_macro": float(recall),
        "test_f1_macro": float(f1),
        "test_specificity_macro": float(sum(specificity) / classes),
        "confusion": metrics.confusion_matrix(truth, predicted, labels=labels).tolist(),
    }


def environment(
    cell: dict,
    dataset_digest: str,
    *,
    world_size: int | None = None,
    backend: str | None = None,
    cores: list[int] | None = None,
    image: dict | None = None,
) -> dict:
    """Everything that a reader needs to judge or rebuild a number.

    ``image``: what scripts/images.py knows of the cell's image, for one who asks from outside.
    """
    python, found = platform.python_version(), packages()
    if image is not None:
        python, held = image["python"], image["packages"]
        found = {name: held[name] for name in PACKAGES if held.get(name)}
    told = os.environ.get("PARBENCH_HOST")
    outside = json.loads(told) if told else host(image)
    described = machine.describe()
    described["os"] = outside.pop("os")
    code = provenance.code_of(cell)
    return {
        "stack": cell["stack"],
        "deployment": cell["deployment"],
        "python": python,
        "packages": found,
        "lock_mismatch": lock_mismatch(cell["stack"], found),
        "machine": described,
        "cores": cores if cores is not None else [],
        "oversubscribed": bool(os.environ.get("PARBENCH_OVERSUBSCRIBED")),
        "world_size": world_size,
        "backend": backend,
        **outside,
        "code_digest": provenance.combined(code),
        "code": code,
        "dataset_digest": dataset_digest,
    }


def host(image: dict | None) -> dict:
    """What a process inside an image cannot see: {os, image, image_digest, git_commit, git_dirty}.

    The launcher hands it on in PARBENCH_HOST. ``image`` is None for a cell of the host.
    """
    return {
        "os": machine.operating_system(),
        "image": image and image["label"],
        "image_digest": image and image["sha256"],
        **provenance.git_state(),
    }


def packages() -> dict[str, str]:
    """The installed versions of PACKAGES."""
    versions = {name: _version(name) for name in PACKAGES}
    return {name: version for name, version in versions.items() if version}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def lock_mismatch(stack: str, packages: dict[str, str]) -> list[str]:
    """How the installed ``packages`` differ from the stack's lock files, in words."""
    pinned = locked(stack)
    return [
        f"{name} {version} instead of {pinned[name]}"
        for name, version in packages.items()
        if name in pinned and version.split("+")[0] != pinned[name]
    ]


@functools.cache
def locked(stack: str) -> dict[str, str]:
    """The version of every package that the lock files of ``stack`` name."""
    found: dict[str, str] = {}
    for file in sorted((ROOT / "containers" / "locks" / stack).glob("*.txt")):
        found.update(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", file.read_text(), re.M))
    return found


@functools.cache
def _validator(name: str):
    import jsonschema
    import yaml

    schema = yaml.safe_load((ROOT / "rules" / "schemas" / f"{name}.schema.yaml").read_text())
    return jsonschema.Draft202012Validator(schema)


def _check(name: str, value: Any, path: Path) -> None:
    error = next(iter(_validator(name).iter_errors(value)), None)
    if error is not None:
        raise ParbenchError(
            f"{path}: {error.json_path}: {error.message}; delete the file and run the cell again"
        )


def read_cell(path: str | os.PathLike) -> dict:
    """Read cell.json, checked by its schema."""
    cell = read_json(path)
    _check("cell", cell, Path(path))
    return cell


def read_metrics(path: str | os.PathLike) -> dict:
    """Read metrics.json, checked by its schema."""
    metrics = read_json(path)
    _check("metrics", metrics, Path(path))
    return metrics


def write_metrics(path: str | os.PathLike, metrics: dict) -> None:
    """Write metrics.json whole or not at all, checked by its schema."""
    metrics = {"schema_version": SCHEMA_VERSION, **metrics}
    _check("metrics", metrics, Path(path))
    write_json(path, metrics)


def write_unfinished(
    path: str | os.PathLike,
    cell: dict,
    status: str,
    reason: str,
    started: str,
    data_folder: str | os.PathLike,
    image: dict | None = None,
    **known: Any,
) -> None:
    """Write the metrics of a run that ended out_of_memory or diverged: a failure is a result.

    ``known`` holds what was measured until then; every other number is null.
    """
    dataset = read_json(Path(data_folder) / "digest.json")
    if "environment" not in known:
        known["environment"] = environment(cell, dataset["sha256"], image=image)
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
    write_metrics(
        path,
        {
            "cell": cell,
            "status": status,
            "reason": reason,
            **blank,
            **NO_SCORES,
            "epoch_seconds": [],
            "warmup_steps": cell["training"]["warmup_steps"],
            "peak_memory_mib": {"devices": [], "processes": []},
            "history": [],
            "started": started,
            "finished": now(),
            **known,
        },
    )
