"""The processor cores of a training process."""

from __future__ import annotations

import os


def pin(local_rank: int, processes: int) -> list[int]:
    """Bind this process to its share of the cores that the launcher locked: those of CPU devices,
    or one per process that drives GPUs. Processes share cores if there are too few.

    Returns the cores. Without PARBENCH_CORES (train.py started by hand) nothing is bound.
    """
    locked = os.environ.get("PARBENCH_CORES")
    if not locked:
        return sorted(os.sched_getaffinity(0))
    cores = [int(core) for core in locked.split(",")]
    if processes > 1:
        share = max(1, len(cores) // processes)
        first = local_rank * share % len(cores)
        cores = cores[first : first + share]
    os.sched_setaffinity(0, cores)
    return cores
