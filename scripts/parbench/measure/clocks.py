"""Clocks: the time of day, and the seconds that devices work."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def now() -> str:
    """Return the current time in UTC, in ISO 8601 format, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def synchronize(devices: list[torch.device]) -> None:
    """Wait until every device has finished its work, so that reading a clock is meaningful."""
    import torch

    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


class Stopwatch:
    """Measure seconds of work on ``devices``, waiting for all of them at the start and end."""

    def __init__(self, devices: list[torch.device]):
        self.devices = devices
        self.seconds = 0.0

    def __enter__(self) -> Stopwatch:
        synchronize(self.devices)
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        synchronize(self.devices)
        self.seconds = time.perf_counter() - self._start
