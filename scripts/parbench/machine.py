"""Describe this machine and what it can run.

The workflow imports this each time it is parsed, so the import must be fast.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

from parbench import variables
from parbench.cell import Hardware

CGROUPS = "/sys/fs/cgroup"
ASK_SECONDS = 30  # for which this waits for an answer of another program


class Card(TypedDict):
    """An accelerator as recorded in metrics.json; ``memory_mib`` is 0 if unknown."""

    name: str
    memory_mib: int
    driver: str


class IdentifiedCard(Card):
    """An accelerator, with the identifier by which CUDA_VISIBLE_DEVICES may choose it."""

    uuid: str


class Description(TypedDict):
    """A machine as recorded in metrics.json, which runs/parts.py reads as its Machine."""

    fingerprint: str
    cpu: str
    cores: int
    memory_mib: int
    os: str
    kernel: str
    accelerators: list[Card]


class Available(TypedDict):
    """What cells may use: cores, GPUs by model, and nodes, of which there is one by default."""

    cpu: int
    cuda: dict[str, int]
    nodes: NotRequired[int]


def describe() -> Description:
    """Return the machine as recorded in metrics.json.

    ``cores`` and ``memory_mib`` are the machine's, within a container's limits; ``cores`` ignores
    the affinity of this process, since a cell is pinned to a few cores. Each slice of a partitioned
    card (MIG) is an accelerator, the card itself is not.
    """
    # A process that was given a slice may not see that its card is partitioned.
    slices = [gpu for gpu in visible(accelerators()) if slice_of(gpu["name"])]
    found = slices or accelerators()
    cards = [
        Card(name=gpu["name"], memory_mib=gpu["memory_mib"], driver=gpu["driver"]) for gpu in found
    ]
    return {
        "fingerprint": _fingerprint(_cpu_model(), os.cpu_count() or 1, _memory_mib(), cards),
        "cpu": _cpu_model(),
        "cores": _within_quota(os.cpu_count() or 1),
        "memory_mib": min(filter(None, (_memory_mib(), memory_limit_mib()))),
        "os": operating_system(),
        "kernel": platform.release(),
        "accelerators": cards,
    }


def _fingerprint(cpu: str, cores: int, memory_mib: int, cards: list[Card]) -> str:
    """Return 12 hexadecimal digits, equal for machines whose times may be compared.

    Reboots, kernel and driver updates (which change the memory slightly) and the number of
    accelerators that a scheduler gives to a job do not change it. Another CPU or accelerator model
    does.
    """
    models = sorted({(gpu["name"], _rounded(gpu["memory_mib"])) for gpu in cards})
    parts = [" ".join(cpu.split()), cores, _rounded(memory_mib), models]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _rounded(mib: int) -> int:
    """Return memory in MiB, rounded on a logarithmic scale in steps of a factor of 1.41."""
    return round(2 * math.log2(mib)) if mib else 0


# ---------------------------------------------------------------- what is available


def available() -> Available:
    """Return what this process may use by its affinity, a container's CPU limit and
    CUDA_VISIBLE_DEVICES."""
    names = [model_name(gpu["name"]) for gpu in visible(accelerators())]
    return {"cpu": cores(), "cuda": dict(Counter(names))}


def cores() -> int:
    """Return the number of cores in this process's affinity, within a container's CPU limit."""
    return _within_quota(len(os.sched_getaffinity(0)))


def cores_of(hardware: Hardware) -> int:
    """Return the number of cores per node that ``hardware`` consists of or needs for its GPUs."""
    return hardware.devices * hardware.threads


def missing(hardware: Hardware, available: Available) -> str | None:
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
        # CUDA gives a process at most one slice.
        min(count, 1) if slice_of(name) else count
        for name, count in available["cuda"].items()
        if not model or is_model(name, model)
    ]
    # A cell's devices must be of one model, so counts of different models are not added up. Those
    # of different names for the requested model are.
    devices_here = sum(counts) if model else max(counts, default=0)
    if devices <= devices_here:
        return None
    return f"needs {devices}x {model}" if model else f"needs {devices} GPU{'s' * (devices > 1)}"


def model_name(name: str) -> str:
    """Return the model in an accelerator's full name: "A100" for "NVIDIA A100-SXM4-40GB"."""
    noise = r"NVIDIA|Tesla|GeForce|Quadro|Graphics|Device|SXM\d*|PCIe?|NVL|HBM\w*|\d+(GB|g)"
    words = [word for word in re.split(r"[\s_-]+", _without_slice(name)) if word]
    words = [word for word in words if not re.fullmatch(noise, word, re.IGNORECASE)]
    if part := slice_of(name):
        words += ["MIG", *([part] if part != "mig" else [])]
    return " ".join(words) or name


def is_model(name: str, model: str) -> bool:
    """Return whether ``name`` contains ``model`` as whole words: an A100 is not an A10.

    A slice of a card (MIG) is a separate model: an A100 1g.10gb is neither an A100 nor an A100
    2g.20gb.
    """

    def words(text: str) -> str:
        return " " + " ".join(re.split(r"[^a-z0-9]+", _without_slice(text).lower())).strip() + " "

    return slice_of(name) == slice_of(model) and words(model) in words(name)


# How nvidia-smi ("MIG 1g.10gb") and Slurm ("a100_1g.10gb", "a100_mig") name a slice of a card. It
# may have some of its compute units only ("1c.3g.20gb"), and media engines ("+me").
_SLICE = re.compile(
    r"(?<![a-z0-9])(?:mig[\s_.-]*)?((?:\d+c[._-])?\d+g[._-]\d+gb(?:[.+-]me(?:\.all)?|-me)?)"
    r"(?![a-z0-9])|(?<![a-z0-9])mig(?![a-z0-9])",
    re.IGNORECASE,
)


def slice_of(name: str) -> str | None:
    """Return the slice of a card (MIG) in ``name``, such as 1g.10gb; None for a whole card.

    Returns "mig" if the name does not say which slice.
    """
    match = _SLICE.search(name)
    return match and re.sub(r"[_-]", ".", (match[1] or "mig").lower())


def _without_slice(name: str) -> str:
    """Return ``name`` without its slice."""
    return _SLICE.sub(" ", name)


# ---------------------------------------------------------------- processor, memory, system


def _cpu_model() -> str:
    info = read("/proc/cpuinfo")
    match = re.search(r"^(?:model name|Hardware|cpu model|cpu)\s*:\s*(.+)$", info, re.MULTILINE)
    return " ".join(match[1].split()) if match else platform.machine()


def _memory_mib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20


def _within_quota(count: int) -> int:
    """Return ``count``, or fewer if this process's cgroup, or one above it, limits CPU time."""
    quota = cpu_quota()
    return count if quota is None else max(1, min(count, math.floor(quota + 0.01)))


def cpu_quota() -> float | None:
    """Return the CPU limit of this process's cgroup, or of one above it; None if there is none.

    The unit is cores, and the limit may be a fraction.
    """
    limits = []
    for cgroup in _cgroups(""):
        if match := re.match(r"(\d+)\s+(\d+)", read(cgroup / "cpu.max")):  # "max": no limit
            limits.append(int(match[1]) / int(match[2]))
    for cgroup in _cgroups("cpu"):
        quota, period = (_number(cgroup / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota and period:
            limits.append(quota / period)
    return min(limits, default=None)


def memory_limit_mib() -> int | None:
    """Return the limit in MiB of this process's cgroup, or of one above it; None without one."""
    numbers = [_number(cgroup / "memory.max") for cgroup in _cgroups("")]
    numbers += [_number(cgroup / "memory.limit_in_bytes") for cgroup in _cgroups("memory")]
    return min((number // 2**20 for number in numbers if number), default=None)


def _cgroups(controller: str) -> list[Path]:
    """Return the folders of this process's cgroup and of those above it.

    ``controller``: of cgroup version 1, such as cpu, whose folder may be shared (cpu,cpuacct);
    empty for version 2. In a container, the path in /proc may be the one outside of it: then only
    the root exists.
    """
    folders = []
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller in controllers.split(","):
            for name in dict.fromkeys((controllers, controller)):
                root = Path(CGROUPS, name)
                inside = [root / path.lstrip("/"), *(root / path.lstrip("/")).parents]
                folders += [folder for folder in inside if folder.is_relative_to(root)]
    # A process whose cgroup is not listed is in the root.
    return folders or [Path(CGROUPS, controller)]


def _number(path: Path) -> int | None:
    """Return the positive number in a small file; None for anything else, such as "max" or -1."""
    text = read(path).strip()
    return int(text) if text.isdigit() and int(text) > 0 else None


def operating_system() -> str:
    """Return the operating system's name and version, such as Debian GNU/Linux 12 (bookworm)."""
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()}"


def read(path: str | os.PathLike[str]) -> str:
    """Return a small file's text; empty if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# ---------------------------------------------------------------- accelerators


def accelerators() -> tuple[IdentifiedCard, ...]:
    """Return NVIDIA's accelerators in bus order.

    A partitioned card (MIG) is replaced by its slices.
    """
    return _accelerators()[0]


def driver_problem() -> str | None:
    """Return what is wrong if NVIDIA's driver is installed but does not answer; None otherwise."""
    return _accelerators()[1]


_QUERY = "--query-gpu=name,memory.total,driver_version,uuid"
_BY_DRIVER = ("nvidia-smi", _QUERY, "--format=csv,noheader,nounits")
# Prints the same lines in containers with only the compute capability, which have no nvidia-smi.
_BY_TORCH = """
import torch
for number in range(torch.cuda.device_count()):
    card = torch.cuda.get_device_properties(number)
    print(f"{card.name}, {card.total_memory >> 20}, , GPU-{card.uuid}")
"""
_ALL_CARDS = ("env", "-u", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER=PCI_BUS_ID")


@functools.cache
def _accelerators() -> tuple[tuple[IdentifiedCard, ...], str | None]:
    # Without a driver, starting nvidia-smi would only take time.
    if not any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/dxg")):
        return (), None
    program, command = "nvidia-smi", _BY_DRIVER
    if shutil.which(program) is None:
        program, command = "torch", (*_ALL_CARDS, sys.executable, "-c", _BY_TORCH)
    text, problem = output_of(command)
    gpus: list[IdentifiedCard] = []
    for line in text.splitlines():
        name, memory, driver, uuid = (["", *map(str.strip, line.rsplit(",", 3))] + [""] * 4)[1:5]
        if not uuid.startswith("GPU-"):  # a message
            problem = problem or line.strip()
            continue
        memory_mib = int(memory) if memory.isdigit() else 0
        gpus.append({"name": name, "memory_mib": memory_mib, "driver": driver, "uuid": uuid})
    if not gpus:
        return (), f"{program}: {problem or last_line(text)}"
    return tuple(_with_slices(gpus)), problem and f"{program}: {problem}"


def _with_slices(gpus: list[IdentifiedCard]) -> list[IdentifiedCard]:
    """Return ``gpus`` with each partitioned card replaced by its slices, from `nvidia-smi -L`."""
    slices_by_uuid: dict[str, list[tuple[str, str]]] = {}
    listing = output_of(["nvidia-smi", "-L"])[0]
    entry = re.compile(r"^\s*(?:GPU \d+:.*|MIG\s+(\S+)\s.*)\(UUID:\s*([^\s)]+)\)", re.MULTILINE)
    card = ""
    for profile, uuid in entry.findall(listing):
        if profile:
            slices_by_uuid.setdefault(card, []).append((profile, uuid))
        else:
            card = uuid
    found: list[IdentifiedCard] = []
    for gpu in gpus:
        for profile, uuid in slices_by_uuid.get(gpu["uuid"], [("", gpu["uuid"])]):
            found.append(_slice(gpu, profile, uuid) if profile else gpu)
    return found


def _slice(gpu: IdentifiedCard, profile: str, uuid: str) -> IdentifiedCard:
    """Return the slice ``uuid`` with a ``profile``, such as 1g.10gb, of the card ``gpu``."""
    size = re.search(r"(\d+)gb", profile)
    memory_mib = int(size[1]) * 1024 if size else 0
    name = f"{gpu['name']} MIG {profile}".rstrip()
    return {"name": name, "memory_mib": memory_mib, "driver": gpu["driver"], "uuid": uuid}


def output_of(command: Sequence[str]) -> tuple[str, str | None]:
    """Return what a program prints, and what went wrong or None; wait at most ASK_SECONDS."""
    try:
        done = subprocess.run(
            command,
            env=variables.clean() | {"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=ASK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {ASK_SECONDS} s"
    except OSError as error:
        return "", f"it cannot be started ({error.strerror})"
    return done.stdout, last_line(done.stdout) if done.returncode else None


def last_line(text: str) -> str:
    """Return the last line of ``text`` that is not empty, or "nothing"."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing")


def visible(accelerators: tuple[IdentifiedCard, ...]) -> list[IdentifiedCard]:
    """Return those of ``accelerators`` that CUDA_VISIBLE_DEVICES makes visible.

    As in CUDA, an unknown entry hides all that follow it.
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return list(accelerators)
    gpus: list[IdentifiedCard] = []
    for entry in (part.strip() for part in chosen.split(",")):
        matches = [gpu for gpu in accelerators if entry and gpu["uuid"].startswith(entry)]
        if entry.isdigit() and int(entry) < len(accelerators):
            matches = [accelerators[int(entry)]]
        elif entry.startswith("MIG-") and not matches and accelerators:
            # A slice that nvidia-smi does not list. Machines with slices have one GPU model.
            card = accelerators[0]
            whole: IdentifiedCard = {**card, "name": _without_slice(card["name"]).strip()}
            matches = [_slice(whole, "", entry)]
        if not matches or matches[0] in gpus:
            break
        gpus.append(matches[0])
    return gpus


def usable_cores(near: Collection[int] = ()) -> list[int]:
    """Return the cores that cells may use: the affinity, within a container's CPU limit.

    One hardware thread of every physical core comes first: two cells on the threads of one core
    would slow each other down. Among these, cores that are ``near`` come first.
    """

    def rank(core: int) -> tuple[int, bool, int]:
        return _thread(core), core not in near, core

    return sorted(os.sched_getaffinity(0), key=rank)[: cores()]


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


def cores_near(gpus: Iterable[str]) -> set[int]:
    """Return the cores of the NUMA nodes of ``gpus`` (UUIDs).

    The set is empty for slices (MIG) and in containers that hide the nodes.
    """
    gpus = set(gpus)
    if not gpus:
        return set()
    text, _ = output_of(["nvidia-smi", "--query-gpu=uuid,pci.bus_id", "--format=csv,noheader"])
    rows = (line.replace(" ", "").split(",") for line in text.splitlines())
    # NVIDIA writes the domain with eight digits, the kernel with four.
    addresses = [row[1][-12:].lower() for row in rows if len(row) == 2 and row[0] in gpus]
    lists = [read(f"/sys/bus/pci/devices/{address}/local_cpulist") for address in addresses]
    return {core for text in lists for core in _cores_in(text)}


def _cores_in(text: str) -> Iterator[int]:
    """Yield the cores in one of the kernel's lists, such as "0-15,32"."""
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        yield from range(int(first), int(last or first) + 1)


def oom_kills() -> int:
    """Return how many processes of this process's cgroup the kernel has killed to free memory.

    Other users and other jobs have their own cgroups. Without cgroups, counts the whole machine's.
    """
    places = [cgroup / "memory.events" for cgroup in _cgroups("")]
    places += [cgroup / "memory.oom_control" for cgroup in _cgroups("memory")]
    for place in (*places, "/proc/vmstat"):
        if match := re.search(r"^oom_kill (\d+)$", read(place), re.MULTILINE):
            return int(match[1])
    return 0
