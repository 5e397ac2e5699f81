"""Clocks: the date, and seconds of work on devices."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def now() -> str:
    """Return the time in UTC, as ISO 8601 with seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def synchronize(devices: list[torch.device]) -> None:
    """Wait until every device has finished its work, so that a clock may be read."""
    import torch

    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


class Stopwatch:
    """Measures seconds of work on ``devices``, waiting for all of them at both ends."""

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
