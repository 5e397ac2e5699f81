"""The load on a process's cores by itself, by other processes and by the hypervisor (proc(5))."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from parbench import machine


@dataclass(frozen=True)
class Load:
    """The load between two readings, in seconds.

    ``busy``: core time spent on any work; ``steal``: core time in which the hypervisor ran
    something else; ``waited``: time in which any process of the machine waited for a core (PSI;
    None if the kernel does not report it); ``own``: CPU time of this process and its helpers.
    """

    busy: float
    steal: float
    waited: float | None
    own: float

    def times(self, share: float) -> Load:
        """Return this load multiplied by ``share``."""
        waited = None if self.waited is None else share * self.waited
        return Load(share * self.busy, share * self.steal, waited, share * self.own)


@dataclass(frozen=True)
class Core:
    """The seconds that one core has spent so far.

    ``work`` is sampled by Linux at its ticks, which miss some work of processes that often wait;
    ``idle`` is measured; ``steal`` went to the hypervisor.
    """

    work: float
    idle: float
    steal: float


@dataclass(frozen=True)
class Reading:
    """The load so far: counters of each core at time ``at``; ``waited`` and ``own`` as in Load."""

    at: float
    cores: Mapping[str, Core]
    waited: float | None
    own: float

    def __sub__(self, earlier: Reading) -> Load:
        """Return the load since ``earlier``.

        A core was busy while it was neither idle nor stolen. Without any sampled work it counts as
        idle: the counters are rounded to hundredths of a second, which would add up over idle
        cores.
        """
        passed, busy, steal = self.at - earlier.at, 0.0, 0.0
        for name, core in self.cores.items():
            then = earlier.cores.get(name, core)
            steal += core.steal - then.steal
            if core.work > then.work:
                busy += passed - (core.idle - then.idle) - (core.steal - then.steal)
        waited = None
        if self.waited is not None and earlier.waited is not None:
            waited = self.waited - earlier.waited
        return Load(busy, steal, waited, self.own - earlier.own)


def now(helpers: Iterable[int] = ()) -> Reading:
    """Return the load so far on the cores that the launcher locked, else on all usable ones.

    ``helpers`` are other processes that work for this one.
    """
    locked = os.environ.get("PARBENCH_CORES")
    names = locked.split(",") if locked else map(str, os.sched_getaffinity(0))
    tick = os.sysconf("SC_CLK_TCK")
    stat_by_core = dict(re.findall(r"^cpu(\d+) (.*)$", machine.read("/proc/stat"), re.MULTILINE))
    cores = {}
    for name in names:
        if name in stat_by_core:
            row = [int(part) / tick for part in stat_by_core[name].split()]
            # The columns: user, nice, system, idle, iowait, irq, softirq, steal.
            cores[name] = Core(sum(row[:3]) + sum(row[5:7]), sum(row[3:5]), row[7])
    pressure = re.search(r"^some .*total=(\d+)", machine.read("/proc/pressure/cpu"), re.MULTILINE)
    own = time.process_time() + sum(map(used, helpers))
    return Reading(time.monotonic(), cores, pressure and int(pressure[1]) / 1e6, own)


def used(process: int) -> float:
    """Return the CPU seconds that a process has used; 0 if it has ended."""
    # Skip the process's name in parentheses, which may hold spaces.
    fields = machine.read(f"/proc/{process}/stat").rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
