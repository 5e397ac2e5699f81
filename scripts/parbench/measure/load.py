"""What loads the cores of a process: itself, others, the hypervisor (proc(5))."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

from parbench import machine


@dataclass(frozen=True)
class Load:
    """Seconds: ``busy`` of the cores with whatever ran on them, ``steal`` in which the machine
    below ran something else, ``waited`` in which any process of the machine waited for a core
    (PSI; None where the kernel does not tell), ``own`` of this process's threads and of those that
    help it."""

    busy: float
    steal: float
    waited: float | None
    own: float

    def __sub__(self, earlier: Load) -> Load:
        """The load since ``earlier``."""
        waited = None if self.waited is None else self.waited - earlier.waited
        return Load(
            self.busy - earlier.busy, self.steal - earlier.steal, waited, self.own - earlier.own
        )


def now(helpers: Iterable[int] = ()) -> Load:
    """The load so far of the cores that the launcher locked, or that this process may use.

    ``helpers`` are other processes that work for this one.
    """
    lent = os.environ.get("PARBENCH_CORES")
    cores = lent.split(",") if lent else map(str, os.sched_getaffinity(0))
    tick = os.sysconf("SC_CLK_TCK")
    told = dict(re.findall(r"^cpu(\d+) (.*)$", machine.read("/proc/stat"), re.MULTILINE))
    rows = [[int(part) / tick for part in told[core].split()] for core in cores if core in told]
    # user, nice, system, idle, iowait, irq, softirq, steal
    busy = sum(sum(row[:3]) + sum(row[5:7]) for row in rows)
    some = re.search(r"^some .*total=(\d+)", machine.read("/proc/pressure/cpu"), re.MULTILINE)
    steal = sum(row[7] for row in rows)
    own = time.process_time() + sum(map(used, helpers))
    return Load(busy, steal, some and int(some[1]) / 1e6, own)


def used(process: int) -> float:
    """Seconds of processor time that a process has taken; 0 for one that has ended."""
    # What stands in parentheses is its name.
    told = machine.read(f"/proc/{process}/stat").rpartition(")")[2].split()
    return sum(map(int, told[11:13])) / os.sysconf("SC_CLK_TCK")
