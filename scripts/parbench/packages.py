"""Find package versions: those in a stack's lock files, and those installed."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import re
from collections.abc import Collection
from pathlib import Path

from parbench.files import read_text

LOCKS = Path(__file__).resolve().parents[2] / "containers" / "locks"
# Dependencies of torch: a compiler, and libraries for NVIDIA's devices, whose names end in the CUDA
# version (cu12, cu13).
OF_TORCH = (
    *("triton", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
)
# Packages whose version can change a measurement. Those that read meters (psutil, nvidia-ml-py) and
# those that a cell never imports cannot.
PACKAGES = (
    *("torch", "torchvision", "timm", "torchgpipe", "horovod"),
    *("deepspeed", "pyspark", "pyarrow", "pandas", "pillow"),
    *("numpy", "scikit-learn", "safetensors", "transformers"),
    *OF_TORCH,
)
_IMPORTED_AS = {"pillow": "PIL", "scikit-learn": "sklearn"}


@functools.cache
def locked(stack: str) -> dict[str, str]:
    """Return the version of every package in the lock files of ``stack``."""
    versions: dict[str, str] = {}
    for file in sorted((LOCKS / stack).glob("*.txt")):
        versions.update(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", read_text(file), re.M))
    return versions


def too_old(stack: str, least: str) -> str | None:
    """Return why ``stack`` has no torch of version ``least`` or later; None if it has one."""
    version = locked(stack)["torch"]
    if not older(version, least):
        return None
    return f"needs torch {least}, and stack {stack} has {version}: choose stack: current"


def older(version: str, least: str) -> bool:
    """Return whether ``version``, such as 2.11.0a0+git, is older than ``least``."""
    numbers = ([int(part) for part in re.findall(r"\d+", text)[:2]] for text in (version, least))
    return next(numbers) < next(numbers)


def installed() -> dict[str, str]:
    """Return the installed versions of PACKAGES."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def used(modules: Collection[str]) -> list[str]:
    """Return the names in PACKAGES that ``modules``, such as torch and PIL, belong to.

    Dependencies of torch are included.
    """
    own = [name for name in PACKAGES if _IMPORTED_AS.get(name, name) in modules]
    return [*own, *OF_TORCH] if "torch" in own else own


def lock_mismatch(stack: str, versions: dict[str, str]) -> list[str]:
    """Describe how the installed ``versions`` differ from the stack's lock files."""
    pinned = locked(stack)
    return [
        f"{name} {version} instead of {pinned[name]}"
        for name, version in versions.items()
        if name in pinned and version.split("+")[0] != pinned[name]
    ]
