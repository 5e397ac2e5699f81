"""Energy and peak memory of all ranks, across interruptions of a training."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from parbench.strategies._base import Strategy


class Meters:
    """Usage of all ranks of ``strategy`` since ``start``, plus that before an interruption."""

    def __init__(self, strategy: Strategy):
        self.strategy = strategy
        self._accelerators = [device for device in strategy.devices if device.type == "cuda"]
        self._joules: float | None = 0.0
        self._peaks: list[list[float]] = []

    def start(self) -> None:
        """Start measuring, without set-up and warm-up."""
        self.forget_accelerators()
        self._begun = millijoules(self._accelerators)

    def joules(self) -> float | None:
        """Return the energy of all ranks in joules; None if any rank's is unknown."""
        end = millijoules(self._accelerators)
        missing = end is None or self._begun is None
        own = 0.0 if missing else (end - self._begun) / 1000
        total, unknown = self.strategy.reduced([own, float(missing)], "sum")
        return None if unknown or self._joules is None else self._joules + total

    def peaks(self) -> list[list[float]]:
        """Return each rank's peak memory in MiB: of its process, then of its accelerators."""
        current = self.strategy.gathered(peak_mib(self._accelerators))
        return [list(map(max, *rows)) for rows in zip(self._peaks or current, current, strict=True)]

    def keep(self) -> dict:
        """Return what a checkpoint stores for ``resume``."""
        self._peaks = self.peaks()
        return {"joules": self.joules(), "peaks": self._peaks}

    def forget_accelerators(self) -> None:
        """Reset accelerators' peaks, to exclude usage since ``keep``. A process's peak stays."""
        reset_peak(self._accelerators)

    def resume(self, kept: dict) -> None:
        """Continue from what a checkpoint stored."""
        self._joules, self._peaks = kept["joules"], kept["peaks"]

    def peak_memory(self) -> dict:
        """Return `peak_memory_mib` of metrics.json: for every process and accelerator."""
        rows = list(enumerate(self.peaks()))
        return {
            "processes": [{"rank": rank, "mib": row[0]} for rank, row in rows],
            # Numbered across ranks: with several ranks, each has one device.
            "devices": [
                {"device": f"cuda:{rank * (len(row) - 1) + index}", "rank": rank, "mib": mib}
                for rank, row in rows
                for index, mib in enumerate(row[1:])
            ],
        }


def reset_peak(accelerators: list[torch.device]) -> None:
    """Reset the peak memory of the accelerators."""
    import torch

    for device in accelerators:
        torch.cuda.reset_peak_memory_stats(device)


def peak_mib(accelerators: list[torch.device]) -> list[float]:
    """Return this process's peak RSS, then each accelerator's peak allocation, in MiB."""
    import torch

    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux
    return [process, *(torch.cuda.max_memory_allocated(device) / 2**20 for device in accelerators)]


def millijoules(accelerators: list[torch.device]) -> int | None:
    """Return the energy used by accelerators, from NVML's counters; None if there are none.

    CPU cells have no energy: a CPU's counter covers the whole package, including other cells.
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
    except (AttributeError, pynvml.NVMLError):  # torch 2.1 has no UUID; an old GPU or a MIG slice
        return None
