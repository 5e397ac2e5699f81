"""Energy and peak memory of all ranks, over the interruptions of a training."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from parbench.strategies._base import Strategy


class Meters:
    """What all ranks of ``strategy`` use from ``start`` on, and earlier parts of a training did."""

    def __init__(self, strategy: Strategy):
        self.strategy = strategy
        self._accelerators = [device for device in strategy.devices if device.type == "cuda"]
        self._joules: float | None = 0.0
        self._peaks: list[list[float]] = []

    def start(self) -> None:
        """Forget what setting up and warm-up took."""
        self.forget_accelerators()
        self._begun = millijoules(self._accelerators)

    def joules(self) -> float | None:
        """Energy of all ranks; None if any rank's is unknown."""
        end = millijoules(self._accelerators)
        missing = end is None or self._begun is None
        mine = 0.0 if missing else (end - self._begun) / 1000
        total, lacking = self.strategy.reduced([mine, float(missing)], "sum")
        return None if lacking or self._joules is None else self._joules + total

    def peaks(self) -> list[list[float]]:
        """Peak memory in MiB of each rank: of its process, then of its accelerators."""
        now = self.strategy.gathered(peak_mib(self._accelerators))
        return [list(map(max, *rows)) for rows in zip(self._peaks or now, now, strict=True)]

    def keep(self) -> dict:
        """What a checkpoint keeps, for ``resume``."""
        self._peaks = self.peaks()
        return {"joules": self.joules(), "peaks": self._peaks}

    def forget_accelerators(self) -> None:
        """Leave out what accelerators held since ``keep``. A process's own peak stays."""
        reset_peak(self._accelerators)

    def resume(self, kept: dict) -> None:
        """Go on from what a checkpoint has kept."""
        self._joules, self._peaks = kept["joules"], kept["peaks"]

    def peak_memory(self) -> dict:
        """`peak_memory_mib` of metrics.json: of every process and accelerator."""
        rows = list(enumerate(self.peaks()))
        return {
            "processes": [{"rank": rank, "mib": row[0]} for rank, row in rows],
            # A rank's devices are numbered from its own: several ranks have one each.
            "devices": [
                {"device": f"cuda:{rank * (len(row) - 1) + index}", "rank": rank, "mib": mib}
                for rank, row in rows
                for index, mib in enumerate(row[1:])
            ],
        }


def reset_peak(accelerators: list[torch.device]) -> None:
    """Reset the peak of the accelerators."""
    import torch

    for device in accelerators:
        torch.cuda.reset_peak_memory_stats(device)


def peak_mib(accelerators: list[torch.device]) -> list[float]:
    """Peak resident memory of this process, then peak allocation on each accelerator, in MiB."""
    import torch

    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux
    return [process, *(torch.cuda.max_memory_allocated(each) / 2**20 for each in accelerators)]


def millijoules(accelerators: list[torch.device]) -> int | None:
    """Energy that accelerators have used, by NVML's own counters; None if there are none.

    A processor's counter covers the whole package, other cells included: no CPU cell has an energy.
    """
    if not accelerators:
        return None
    import torch

    try:
        import pynvml
    except ModuleNotFoundError:  # a bare machine
        return None
    try:
        pynvml.nvmlInit()
        uuids = [torch.cuda.get_device_properties(device).uuid for device in accelerators]
        handles = [pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") for uuid in uuids]
        return sum(map(pynvml.nvmlDeviceGetTotalEnergyConsumption, handles))
    except (AttributeError, pynvml.NVMLError):  # torch 2.1 tells no UUID; an old GPU, a slice
        return None
