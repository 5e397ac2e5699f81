"""Energy of accelerators, by NVML."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Energy:
    """Energy of this process's accelerators, from NVML's own counters.

    ``joules()`` is None where no counter can be read. A processor's counter covers the whole
    package, other cells included, so that no CPU cell has an energy.
    """

    def __init__(self, devices: list[torch.device]):
        self._uuids = _gpu_uuids(devices)
        self._start = self._read()

    def joules(self) -> float | None:
        """Joules since this object was made."""
        end = self._read()
        return None if self._start is None or end is None else (end - self._start) / 1000

    def _read(self) -> int | None:
        if not self._uuids:
            return None
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in self._uuids]
            return sum(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles)
        except pynvml.NVMLError:  # old GPUs and virtual ones have no counter
            return None


def _gpu_uuids(devices: list[torch.device]) -> list[str]:
    import torch

    uuids = []
    for device in devices:
        if device.type == "cuda":
            uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
            if not uuid:  # torch 2.1 does not tell it
                return []
            uuids.append(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
    return uuids
