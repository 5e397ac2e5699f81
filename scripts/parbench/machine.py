"""What this machine is, and what it can run.

Imported whenever the workflow is parsed, so it does nothing slow.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

from parbench.cell import Hardware

CGROUPS = "/sys/fs/cgroup"


def describe() -> dict:
    """Return the machine as recorded in metrics.json.

    {fingerprint, cpu, cores, memory_mib, os, kernel, accelerators: [{name, memory_mib, driver}]}.
    ``cores`` counts the machine's cores, within a container's limit, and ignores the affinity of
    this process, since a cell is pinned to a few cores.
    """
    cards = [{key: gpu[key] for key in ("name", "memory_mib", "driver")} for gpu in accelerators()]
    return {
        "fingerprint": _fingerprint(_cpu_model(), os.cpu_count() or 1, _memory_mib(), cards),
        "cpu": _cpu_model(),
        "cores": _within_quota(os.cpu_count() or 1),
        "memory_mib": _memory_mib(),
        "os": operating_system(),
        "kernel": platform.release(),
        "accelerators": cards,
    }


def _fingerprint(cpu: str, cores: int, memory_mib: int, cards: list[dict]) -> str:
    """Return 12 hexadecimal digits, equal for machines whose times may be compared.

    Unchanged by reboots, kernel and driver updates, which change the memory slightly, and by the
    number of accelerators that a scheduler gives to a job. Changed by another CPU or accelerator
    model.
    """
    models = sorted({(gpu["name"], _rounded(gpu["memory_mib"])) for gpu in cards})
    parts = [" ".join(cpu.split()), cores, _rounded(memory_mib), models]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _rounded(mib: int) -> int:
    """Round memory on a logarithmic scale, in steps of a factor of 1.41."""
    return round(2 * math.log2(mib)) if mib else 0


# ---------------------------------------------------------------- what is available


def available(config_override: dict | str | None = None) -> dict:
    """Return what cells may use: {"cpu": cores, "cuda": {"A100": 2, ...}}.

    ``config_override`` is `available:` of config.yaml: a mapping of this form is returned as it is;
    "auto" or None detects what this process has, by its affinity, a container's CPU limit and
    CUDA_VISIBLE_DEVICES.
    """
    if isinstance(config_override, dict):
        return {"cuda": {}, **config_override}
    names = [model_name(gpu["name"]) for gpu in visible(accelerators())]
    return {"cpu": cores(), "cuda": dict(Counter(names))}


def cores() -> int:
    """Count the cores this process may use: its affinity, within a container's CPU limit."""
    return _within_quota(len(os.sched_getaffinity(0)))


def cores_of(hardware: Hardware) -> int:
    """Return the number of cores per node that the CPU devices of ``hardware`` consist of."""
    return hardware.devices * hardware.threads


def missing(hardware: Hardware, available: dict) -> str | None:
    """Return why cells on ``hardware`` cannot run with what is ``available``; None if they can."""
    nodes, devices = hardware.nodes, hardware.devices
    cores_per_node = cores_of(hardware) if hardware.device == "cpu" else 0
    if nodes > available.get("nodes", 1):
        total = f"{nodes * cores_per_node} cores: {nodes} nodes with {cores_per_node} each"
        return f"needs {total if cores_per_node else f'{nodes} nodes'}"
    if cores_per_node:
        return f"needs {cores_per_node} cores" if cores_per_node > available["cpu"] else None
    if hardware.device == "mps":
        return "needs an Apple GPU"
    model = hardware.gpu_model
    counts = [
        count for name, count in available["cuda"].items() if not model or is_model(name, model)
    ]
    # A cell's devices must be alike: counts of two models never add up, but those of two names
    # of the requested model do.
    devices_here = sum(counts) if model else max(counts, default=0)
    if devices <= devices_here:
        return None
    return f"needs {devices}x {model}" if model else f"needs {devices} GPU{'s' * (devices > 1)}"


def model_name(name: str) -> str:
    """Return the model in an accelerator's full name: "A100" for "NVIDIA A100-SXM4-40GB"."""
    noise = r"NVIDIA|Tesla|GeForce|Quadro|Graphics|Device|SXM\d*|PCIe?|NVL|HBM\w*|\d+(GB|g)"
    words = [word for word in re.split(r"[\s_-]+", name) if word]
    return " ".join(word for word in words if not re.fullmatch(noise, word, re.IGNORECASE)) or name


def is_model(name: str, model: str) -> bool:
    """Return whether ``name`` contains ``model`` as whole words: an A100 is no A10."""

    def words(text: str) -> str:
        return " " + " ".join(re.split(r"[^a-z0-9]+", text.lower())).strip() + " "

    return words(model) in words(name)


# ---------------------------------------------------------------- Horovod


class Software:
    """The software of this machine's own environment; DeployedSoftware also covers images."""

    def without_horovod(self) -> str | None:
        """Return why cells have no Horovod; None if they have it."""
        state = _horovod_state()
        if state.get("available") is False:
            return f"Horovod could not be built: {state.get('reason') or 'no reason recorded'}"
        if importlib.util.find_spec("horovod") is None:
            return "Horovod is not installed: make env ARGS=horovod"
        return None

    def without(self, name: str, module: str) -> str | None:
        """Return why cells lack ``module`` of the lock file ``name``.txt; None if they have it."""
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed: make env ARGS={name}"
        return None

    def without_text(self) -> str | None:
        """Return why cells lack the packages of text models; None if they have them."""
        return self.without("text", "transformers")

    def without_spark(self) -> str | None:
        """Return why cells have no Spark; None if they have it."""
        if lacking := self.without("spark", "pyspark"):
            return lacking
        if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
            return "Spark needs Java 17 or newer: sudo apt install openjdk-17-jre-headless"
        return None

    def without_compiler(self) -> str | None:
        """Return why torch.compile cannot work; None if it can."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        if shutil.which(os.environ.get("CXX", "g++")) is None:
            return "needs a C++ compiler: sudo apt install g++"
        if not Path(sysconfig.get_path("include"), "Python.h").is_file():
            return f"torch.compile needs Python's headers: sudo apt install {version}-dev"
        return None

    def without_nccl(self) -> str | None:
        """Return why Horovod cannot use GPUs; None if it can."""
        if _horovod_state().get("gpu") == "nccl":
            return None
        return "needs Horovod with NCCL: PARBENCH_HOROVOD_GPU=nccl make report"


def _horovod_state() -> dict:
    """Return what scripts/environment.py recorded about its Horovod: {available, gpu, ...}."""
    path = Path(sys.prefix, "horovod.json")
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


# ---------------------------------------------------------------- processor, memory, system


def _cpu_model() -> str:
    info = read("/proc/cpuinfo")
    match = re.search(r"^(?:model name|Hardware|cpu model|cpu)\s*:\s*(.+)$", info, re.MULTILINE)
    return " ".join(match[1].split()) if match else platform.machine()


def _memory_mib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20


def _within_quota(count: int) -> int:
    """Return ``count``, or fewer if this process's cgroup, or one above it, limits CPU time."""
    match = re.search(r"^0::/(.*)$", read("/proc/self/cgroup"), re.MULTILINE)
    folder = Path(CGROUPS, match[1] if match else "")
    for cgroup in (folder, *folder.parents):
        quota, _, period = read(cgroup / "cpu.max").partition(" ")
        if quota.isdigit():  # "max": no limit
            count = min(count, math.floor(int(quota) / int(period) + 0.01))
    return max(1, count)


def operating_system() -> str:
    """Return the system's name and version, such as Debian GNU/Linux 12 (bookworm)."""
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()}"


def read(path: str | os.PathLike) -> str:
    """Return a small file's text; empty if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# ---------------------------------------------------------------- accelerators


@functools.cache
def accelerators() -> tuple[dict, ...]:
    """Return NVIDIA's accelerators, {name, memory_mib, driver, uuid}, in bus order."""
    # Do not spend time on nvidia-smi without a driver.
    if not any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/dxg")):
        return ()
    query = "--query-gpu=name,memory.total,driver_version,uuid"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    gpus = []
    for line in completed.stdout.splitlines():
        name, memory, driver, uuid = (value.strip() for value in line.rsplit(",", 3))
        memory_mib = int(memory) if memory.isdigit() else 0
        gpus.append({"name": name, "memory_mib": memory_mib, "driver": driver, "uuid": uuid})
    return tuple(gpus)


def visible(accelerators: tuple[dict, ...]) -> list[dict]:
    """Filter by CUDA_VISIBLE_DEVICES; as in CUDA, an unknown entry hides all that follow it."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return list(accelerators)
    gpus = []
    for entry in (part.strip() for part in chosen.split(",")):
        if entry.isdigit() and int(entry) < len(accelerators):
            gpus.append(accelerators[int(entry)])
        elif entry.startswith("MIG-") and accelerators:
            # A MIG slice: keep its own UUID. Machines with MIG slices have one GPU model.
            gpus.append({**accelerators[0], "uuid": entry})
        elif entry and (matches := [gpu for gpu in accelerators if gpu["uuid"].startswith(entry)]):
            gpus.append(matches[0])
        else:
            break
    return gpus


def usable_cores() -> list[int]:
    """Return the cores that cells may use: the affinity, within a container's CPU limit.

    One thread of every physical core comes first: two cells on the threads of one core would slow
    each other down.
    """
    affinity = sorted(os.sched_getaffinity(0), key=lambda core: (_thread(core), core))
    return affinity[: cores()]


def _thread(core: int) -> int:
    """Return 0 for the first hardware thread of a physical core, more for its others."""
    siblings = read(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    first = re.match(r"\d+", siblings)  # of "0,64" or "0-1"
    return core - int(first[0]) if first else 0


def usable_gpus(model: str | None = None) -> list[str]:
    """Return UUIDs of usable GPUs of one model: ``model``, by default the most common one."""
    gpus = [(gpu["uuid"], gpu["name"]) for gpu in visible(accelerators())]
    if model:
        return [uuid for uuid, name in gpus if is_model(name, model)]
    commonest = Counter(name for _, name in gpus).most_common(1)
    return [uuid for uuid, name in gpus if name == commonest[0][0]] if commonest else []


def oom_kills() -> int:
    """Return how often the kernel has killed for lack of memory, including in cgroups."""
    match = re.search(r"^oom_kill (\d+)$", read("/proc/vmstat"), re.MULTILINE)
    return int(match[1]) if match else 0
