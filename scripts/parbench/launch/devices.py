"""Lock devices: one cell uses each at a time, across all runs, checkouts and users of a machine.

A CPU device is one or more cores. Two cells on one core would disturb each other's times, so a cell
holds a lock for each of its cores and GPUs: a socket with that device's name in the machine's
abstract namespace (unix(7)), which one process can have at a time. Such a name is not a file: jobs
with their own /tmp see it too, every user may take it, and no file system has to support locks. The
kernel releases it when its holder dies.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import socket
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from parbench import machine, strategies
from parbench.cell import Cell, Pair
from parbench.errors import ParbenchError

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class LockedDevices:
    """The devices of this machine that a cell holds.

    ``gpus``: a UUID per GPU. ``cores``: those of the CPU devices, or of the processes that drive
    the GPUs.
    """

    gpus: tuple[str, ...]
    cores: tuple[str, ...]

    def of(self, side: Cell, nodes: int) -> LockedDevices:
        """Return the part that one side of a pair uses on ``nodes`` nodes."""
        gpus, cores = needed(side, nodes)
        return LockedDevices(self.gpus[:gpus], self.cores[:cores])

    def __str__(self) -> str:
        """Return, for example, ``cpu 0, 1``."""
        parts = [f"cuda {', '.join(self.gpus)}"] if self.gpus else []
        return " and ".join(parts or [f"cpu {', '.join(self.cores)}"])


def needed(side: Cell, nodes: int) -> tuple[int, int]:
    """Return how many GPUs and how many cores ``side`` needs on ``nodes`` nodes."""
    number, threads = nodes * side.hardware.devices, side.hardware.threads
    if side.hardware.device == "cpu":
        return 0, number * threads
    usable, gpus = len(machine.usable_cores()), len(machine.visible(machine.accelerators()))
    # At most each GPU's share of the machine's cores, but one core for each GPU's process.
    cores = number * max(1, min(threads, usable // max(1, gpus)))
    return number, min(usable, max(cores, nodes * strategies.of(side).ranks_per_node))


@contextlib.contextmanager
def lock_devices(cell: Cell | Pair, nodes_here: int = 1) -> Iterator[LockedDevices]:
    """Lock the devices of ``cell`` on this machine, and yield them.

    ``nodes_here``: how many of the cell's nodes run on this machine. The sides of a pair use the
    same devices in turn. Waits until enough devices are free. Raises ParbenchError if this process
    may not use that many.
    """
    needs = [needed(side, min(nodes_here, side.hardware.nodes)) for side in cell.sides]
    gpus, cores = (max(numbers) for numbers in zip(*needs, strict=True))
    model = next(filter(None, (side.hardware.gpu_model for side in cell.sides)), None)
    # CUDA_VISIBLE_DEVICES, which Slurm sets too, restricts the GPUs.
    usable = machine.usable_gpus(model) if gpus else []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
    kind = f"GPUs of {model or 'one model'} (CUDA_VISIBLE_DEVICES is {visible})"
    gpu_by_lock = {f"gpu-{uuid}": uuid for uuid in usable}
    # Always GPUs before cores, so that two cells cannot wait for each other.
    with _hold(gpus, kind, gpu_by_lock, cell.id) as locked_gpus:
        nearest = machine.usable_cores(machine.cores_near(locked_gpus))
        core_by_lock = {f"core-{core}": str(core) for core in nearest}
        with _hold(cores, "cores", core_by_lock, cell.id) as locked_cores:
            yield LockedDevices(locked_gpus, locked_cores)


@contextlib.contextmanager
def lock_cores_and_gpus(cores: Collection[int], holder: str) -> Iterator[None]:
    """Lock these ``cores``, and all GPUs that this process may use, for programs of a user."""
    gpus = machine.usable_gpus()
    with (
        _hold(len(gpus), "GPUs", {f"gpu-{uuid}": uuid for uuid in gpus}, holder),
        _hold(len(cores), "cores", {f"core-{core}": str(core) for core in cores}, holder),
    ):
        yield


@contextlib.contextmanager
def _hold(number: int, kind: str, locks: dict[str, str], holder: str) -> Iterator[tuple[str, ...]]:
    """Hold ``number`` of the ``locks`` ({name: device}, preferred ones first), all or none.

    Holding a few while waiting for more would block other cells. Raises ParbenchError if there are
    fewer than ``number``.
    """
    if number > len(locks):
        raise ParbenchError(
            f"{holder}: needs {number} {kind}, but this process may use {len(locks)} "
            f"({', '.join(locks.values()) or 'none'}); run it where it may use more, or choose "
            "hardware with fewer devices or threads"
        )
    announced = False
    while True:
        with contextlib.ExitStack() as stack:
            devices: list[str] = []
            for name, device in locks.items():
                if len(devices) < number and _try_lock(name, stack):
                    devices.append(device)
            if len(devices) == number:
                yield tuple(devices)
                return
        if not announced:
            announced = True
            print(
                f"{holder}: waiting for {number} of {', '.join(locks)}, which other cells use "
                f"(`ss -xap | grep @{_namespace()}` names the processes)",
                file=sys.stderr,
                flush=True,
            )
        # At random intervals, so that waiting cells do not try at the same moments.
        time.sleep(POLL_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311


def _try_lock(name: str, stack: contextlib.ExitStack) -> bool:
    """Take the lock ``name`` until ``stack`` closes; return False if another process has it."""
    lock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    try:
        lock.bind(f"\0{_namespace()}{name}")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    return True


def _namespace() -> str:
    """Return the prefix of all names; tests have one of their own, from PARBENCH_LOCKS."""
    own = os.environ.get("PARBENCH_LOCKS")
    return f"parbench-{hashlib.sha256(os.fsencode(own)).hexdigest()[:12]}/" if own else "parbench/"
