"""The load on a process's cores: its own, other processes', the hypervisor's (proc(5))."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

from parbench import machine


@dataclass(frozen=True)
class Load:
    """Seconds, of which only differences mean anything: ``busy`` on the cores with any work, which
    is what passed but neither idle nor stolen; ``steal`` in which the hypervisor ran something
    else, ``waited`` in which any process of the machine waited for a core (PSI; None if the kernel
    has none), ``own`` CPU time of this process and its helpers."""

    busy: float
    steal: float
    waited: float | None
    own: float

    def __sub__(self, earlier: Load) -> Load:
        """Return the load since ``earlier``."""
        waited = None if self.waited is None else self.waited - earlier.waited
        return Load(
            self.busy - earlier.busy, self.steal - earlier.steal, waited, self.own - earlier.own
        )

    def times(self, share: float) -> Load:
        """Return this share of it."""
        waited = None if self.waited is None else share * self.waited
        return Load(share * self.busy, share * self.steal, waited, share * self.own)


def now(helpers: Iterable[int] = ()) -> Load:
    """Return the load so far on the cores that the launcher locked, or that this process may use.

    ``helpers`` are other processes that work for this one.
    """
    locked = os.environ.get("PARBENCH_CORES")
    cores = locked.split(",") if locked else map(str, os.sched_getaffinity(0))
    tick = os.sysconf("SC_CLK_TCK")
    stat_by_core = dict(re.findall(r"^cpu(\d+) (.*)$", machine.read("/proc/stat"), re.MULTILINE))
    rows = [
        [int(part) / tick for part in stat_by_core[core].split()]
        for core in cores
        if stat_by_core.get(core, "0").strip("0 ")  # sandboxes have nothing but zeros
    ]
    # user, nice, system, idle, iowait, irq, softirq, steal: Linux samples the work at its ticks,
    # and so misses some of what often waits; it measures what is idle.
    busy = sum(time.monotonic() - row[3] - row[4] - row[7] for row in rows)
    pressure = re.search(r"^some .*total=(\d+)", machine.read("/proc/pressure/cpu"), re.MULTILINE)
    steal = sum(row[7] for row in rows)
    own = time.process_time() + sum(map(used, helpers))
    return Load(busy, steal, pressure and int(pressure[1]) / 1e6, own)


def used(process: int) -> float:
    """Return the CPU seconds that a process has used; 0 if it has ended."""
    # Skip the process's name in parentheses, which may hold spaces.
    fields = machine.read(f"/proc/{process}/stat").rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
