"""Devices lent to one cell at a time, over all runs, checkouts and users of a machine.

A device of kind cpu is one core or several, and two cells on one core would both measure nonsense:
whoever trains holds the lock files of its cores or GPUs. The kernel gives a lock back when its
holder is gone, whatever killed it.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from parbench import machine, strategies
from parbench.cell import Cell, Pair
from parbench.errors import ParbenchError

# Not tempfile.gettempdir(): where every job has a TMPDIR of its own, nothing would be shared.
DEFAULT_FOLDER = "/tmp/parbench-locks"  # noqa: S108  (filelock follows no symbolic link)
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Lent:
    """What a cell may use on this machine.

    ``gpus``: UUIDs, one a device. ``cores``: those of devices of kind cpu, or of the processes that
    drive GPUs.
    """

    gpus: tuple[str, ...]
    cores: tuple[str, ...]

    def of(self, side: Cell, nodes: int) -> Lent:
        """What a side of a pair uses of it, on ``nodes`` nodes."""
        gpus, cores = needed(side, nodes)
        return Lent(self.gpus[:gpus], self.cores[:cores])

    def __str__(self) -> str:
        """``cpu 0, 1``."""
        parts = [f"cuda {', '.join(self.gpus)}"] if self.gpus else []
        return " and ".join(parts or [f"cpu {', '.join(self.cores)}"])


def needed(side: Cell, nodes: int) -> tuple[int, int]:
    """How many GPUs and how many cores ``side`` takes on ``nodes`` nodes."""
    number = nodes * side.hardware.devices
    if side.hardware.device == "cpu":
        return 0, number * side.hardware.threads
    # Each process has a core to drive its GPU from, also of several that share one.
    processes = max(number, nodes * strategies.of(side).ranks_per_node)
    return number, min(processes, len(machine.usable_cores()))


@contextlib.contextmanager
def lent(cell: Cell | Pair, here: int = 1) -> Iterator[Lent]:
    """Lend the devices of ``cell``, of whose nodes ``here`` are this machine.

    A pair has those of all sides, which use them in turn. Waits until they are free. ParbenchError
    when this process may not use as many.
    """
    wanted = [needed(side, min(here, side.hardware.nodes)) for side in cell.sides]
    gpus, cores = (max(numbers) for numbers in zip(*wanted, strict=True))
    model = next(filter(None, (side.hardware.gpu_model for side in cell.sides)), None)
    # CUDA_VISIBLE_DEVICES, which Slurm sets too, says which ones this process may use. A slice of a
    # GPU may have an id with slashes.
    usable = machine.usable_gpus(model) if gpus else []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
    kind = f"GPUs of {model or 'one model'} (CUDA_VISIBLE_DEVICES is {visible})"
    of_gpus = {f"gpu-{uuid.replace('/', '_')}": uuid for uuid in usable}
    of_cores = {f"core-{core}": str(core) for core in machine.usable_cores()}
    # GPUs first, always: nobody who waits for a core then holds one that a holder of GPUs wants.
    with (
        _locked(gpus, kind, of_gpus, cell.id) as lent_gpus,
        _locked(cores, "cores", of_cores, cell.id) as lent_cores,
    ):
        yield Lent(lent_gpus, lent_cores)


@contextlib.contextmanager
def _locked(
    number: int, kind: str, files: dict[str, str], holder: str
) -> Iterator[tuple[str, ...]]:
    """Hold ``number`` of the locks ``files`` ({file name: device}, best first), all or none.

    Whoever cannot have as many as it needs keeps none from others while it waits. ParbenchError
    where there are not as many.
    """
    if number > len(files):
        raise ParbenchError(
            f"{holder}: needs {number} {kind} and this process may use {len(files)} "
            f"({', '.join(files.values()) or 'none'}); run it where it may use more, or choose "
            "hardware with fewer devices or threads"
        )
    folder, said = _folder(), False
    while True:
        with contextlib.ExitStack() as stack:
            held: list[str] = []
            for name, device in files.items():
                if len(held) < number and _try(folder / name, stack):
                    held.append(device)
            if len(held) == number:
                yield tuple(held)
                return
        if not said:
            said = True
            print(
                f"{holder}: waiting for {number} of {', '.join(files)}, which other cells use "
                f"(`lslocks` names the processes that hold {folder}/*)",
                file=sys.stderr,
                flush=True,
            )
        # Not in step with others who wait.
        time.sleep(POLL_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311


def _try(path: Path, stack: contextlib.ExitStack) -> bool:
    """Lock the file ``path`` until ``stack`` ends; False when another process has it."""
    try:
        # Whoever uses the machine may open it; in this folder only its owner deletes it.
        stack.enter_context(FileLock(path, mode=0o666, blocking=False))
    except Timeout:
        return False
    except OSError as error:
        raise ParbenchError(
            f"{path}: {error.strerror}; delete it, or set PARBENCH_LOCKS to a folder that all "
            "users of this machine may write to"
        ) from None
    return True


def _folder() -> Path:
    """The folder that all users share; made when it is missing."""
    path = Path(os.environ.get("PARBENCH_LOCKS", DEFAULT_FOLDER))
    with contextlib.suppress(OSError):  # it is there, or its locks say what is wrong with it
        path.mkdir(parents=True)
        path.chmod(0o1777)  # whatever the umask
    return path
