"""Settings of the machine that affect the speed of cores and GPUs, as far as they are readable."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from parbench.machine import output_of, read

CPUS = Path("/sys/devices/system/cpu")
# NVIDIA's images set NCCL_VERSION for a library that torch does not use.
NO_SETTINGS = ("NCCL_VERSION", "NCCL_DEBUG", "NCCL_DEBUG_FILE")
# NCCL's log names the transport between two ranks so; a network's is followed by its card's number.
TRANSPORT = re.compile(r" via ((?:P2P|SHM)/[\w ]+|NET/\w+)(?:/\d+(?:\(\d+\))?)?(/GDRDMA)?")
MPS = Path("/tmp/nvidia-mps")  # noqa: S108  # the default of CUDA_MPS_PIPE_DIRECTORY


def of_cores(cores: Iterable[int]) -> dict[str, str]:
    """Return the settings of ``cores`` by name, without those that cannot be read."""
    folders = [CPUS / f"cpu{core}" for core in cores]
    turbo = _flag(CPUS / "intel_pstate/no_turbo", "on", "off")
    turbo = turbo or _flag(CPUS / "cpufreq/boost", "off", "on")
    siblings = _each(read(folder / "topology/thread_siblings_list") for folder in folders)
    nodes = (path.name for folder in folders for path in folder.glob("node[0-9]*"))
    found = {
        "governor": _each(read(folder / "cpufreq/scaling_governor") for folder in folders),
        "turbo": turbo,
        "threads of a core": siblings,
        "NUMA": _each(nodes),
    }
    return {name: text for name, text in found.items() if text}


def log_nccl() -> None:
    """Make NCCL log its choices to a file in PARBENCH_STATE, unless the user configured its log.

    Must be called before NCCL starts.
    """
    state = os.environ.get("PARBENCH_STATE")
    if state and not {"NCCL_DEBUG", "NCCL_DEBUG_FILE"} & set(os.environ):
        os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{state}/nccl.%h.%p"}


def _transports() -> str:
    """Return the transports between the ranks on this node that NCCL has logged so far."""
    logs = Path(os.environ.get("PARBENCH_STATE", ".")).glob("nccl.*")
    found = (match for log in logs for match in TRANSPORT.finditer(read(log)))
    return ", ".join(sorted({f"{match[1].strip()}{match[2] or ''}" for match in found}))


def of_gpus() -> dict[str, str]:
    """Return whether MPS is on, NCCL's settings and chosen transports, and the power limit and
    highest clock of the visible cards."""
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", MPS))
    settings = {
        name.removeprefix("NCCL_"): os.environ[name]
        for name in sorted(os.environ)
        if name.startswith("NCCL_") and name not in NO_SETTINGS
    }
    nccl = ", ".join(f"{name} {value}" for name, value in settings.items())
    found = {"MPS": "on" if (pipes / "control").exists() else "off", "NCCL": nccl or "its defaults"}
    if transports := _transports():
        found["NCCL's transport"] = transports
    return found | _limits()


def _limits() -> dict[str, str]:
    """Return the power limit and highest clock of the visible cards; empty for MIG instances."""
    command = ["nvidia-smi", "--query-gpu=power.limit,clocks.max.sm", "--format=csv,noheader"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        command.append(f"--id={visible}")
    text, _ = output_of(command)
    rows = re.findall(r"^([\d.]+ W), (\d+ MHz)$", text, re.MULTILINE)
    found = dict(zip(("power limit", "highest clock"), zip(*rows, strict=True), strict=False))
    return {name: _each(values) for name, values in found.items()}


def _flag(path: Path, zero: str, one: str) -> str:
    """Return ``zero`` or ``one``, depending on whether the file at ``path`` holds 0 or 1; else
    empty."""
    return {"0": zero, "1": one}.get(read(path).strip(), "")


def _each(texts: Iterable[str]) -> str:
    """Return the distinct ``texts`` in order, without empty ones."""
    return ", ".join(dict.fromkeys(filter(None, map(str.strip, texts))))
