"""Peak memory of a training process and of its accelerators."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def reset_peak(devices: list[torch.device]) -> None:
    """Forget the peak that accelerators reached so far: in warm-up, in writing a checkpoint."""
    import torch

    for device in devices:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)


def peak_mib(devices: list[torch.device]) -> tuple[float, list[float]]:
    """Peak resident memory of this process and peak allocation on each accelerator, in MiB."""
    import torch

    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux
    accelerators = [
        torch.cuda.max_memory_allocated(device) / 2**20
        for device in devices
        if device.type == "cuda"
    ]
    return process, accelerators
