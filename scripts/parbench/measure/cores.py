"""The processor cores of a training process."""

from __future__ import annotations

import contextlib
import os

NUMBERS_PER_THREAD = 2**16  # enough for every thread: torch splits no finer than half of this


def pin(local_rank: int, processes: int) -> list[int]:
    """Bind this process to its share of the cores that the launcher locked, and return these.

    They are the cores of CPU devices, or the cores reserved for the processes that drive GPUs.
    Processes share cores if there are too few. Without PARBENCH_CORES (train.py started by hand)
    nothing is bound.
    """
    locked = os.environ.get("PARBENCH_CORES")
    if not locked:
        return sorted(os.sched_getaffinity(0))
    cores = [int(core) for core in locked.split(",")]
    if processes > 1:
        share = max(1, len(cores) // processes)
        first = local_rank * share % len(cores)
        cores = cores[first : first + share]
    _start_threads()
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # the thread has just ended
            os.sched_setaffinity(int(thread), cores)
    return cores


def _start_threads() -> None:
    """Make OpenMP start its threads before they are bound.

    Threads that started later would be bound to other cores if OMP_PROC_BIND, GOMP_CPU_AFFINITY or
    a similar variable is set.
    """
    import torch

    if (threads := torch.get_num_threads()) > 1:
        torch.ones(threads * NUMBERS_PER_THREAD)
