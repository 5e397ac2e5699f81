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
        self._devices = [device for device in devices if device.type == "cuda"]
        self._start = self._read()

    def joules(self) -> float | None:
        """Joules since this object was made."""
        end = self._read()
        return None if self._start is None or end is None else (end - self._start) / 1000

    def _read(self) -> int | None:
        if not self._devices:
            return None
        import pynvml
        import torch

        try:
            pynvml.nvmlInit()
            uuids = [torch.cuda.get_device_properties(device).uuid for device in self._devices]
            handles = [pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") for uuid in uuids]
            return sum(map(pynvml.nvmlDeviceGetTotalEnergyConsumption, handles))
        except (AttributeError, pynvml.NVMLError):  # torch 2.1 tells no UUID; an old GPU, a slice
            return None
