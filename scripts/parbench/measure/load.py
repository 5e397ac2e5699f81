"""What loads the cores of a process: itself, others, the machine below (proc(5))."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass

from parbench import machine


@dataclass(frozen=True)
class Load:
    """Seconds: ``busy`` of the cores with whatever ran on them, ``steal`` in which the machine
    below ran something else, ``waited`` in which any process of the machine waited for a core
    (PSI; None where the kernel does not tell), ``own`` of this process's threads."""

    busy: float
    steal: float
    waited: float | None
    own: float

    def __sub__(self, earlier: Load) -> Load:
        """What came since ``earlier``."""
        waited = None if self.waited is None else self.waited - earlier.waited
        return Load(
            self.busy - earlier.busy, self.steal - earlier.steal, waited, self.own - earlier.own
        )


def now() -> Load:
    """The load until now of the cores that the launcher lent, or that this process may use."""
    lent = os.environ.get("PARBENCH_CORES")
    cores = lent.split(",") if lent else map(str, os.sched_getaffinity(0))
    tick = os.sysconf("SC_CLK_TCK")
    told = dict(re.findall(r"^cpu(\d+) (.*)$", machine.read("/proc/stat"), re.MULTILINE))
    rows = [[int(part) / tick for part in told[core].split()] for core in cores if core in told]
    # user, nice, system, idle, iowait, irq, softirq, steal
    busy = sum(sum(row[:3]) + sum(row[5:7]) for row in rows)
    some = re.search(r"^some .*total=(\d+)", machine.read("/proc/pressure/cpu"), re.MULTILINE)
    steal = sum(row[7] for row in rows)
    return Load(busy, steal, some and int(some[1]) / 1e6, time.process_time())
