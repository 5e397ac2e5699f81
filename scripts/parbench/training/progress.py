"""Messages of a running rank: heartbeats and errors for the launcher, a log line per epoch."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from parbench.errors import ParbenchError

if TYPE_CHECKING:
    from parbench.measure.metrics_types import EpochJson

# A heartbeat writes a small file, and timeouts are minutes: once a second is enough.
BEAT_SECONDS = 1.0


class Heartbeat:
    """Reports to the launcher, through files in PARBENCH_STATE, that this rank makes progress.

    Does nothing if train.py was started by hand.
    """

    def __init__(self, rank: int):
        self.rank = rank
        state = os.environ.get("PARBENCH_STATE")
        self._folder = Path(state) if state else None
        self._last = 0.0

    def beat(self, phase: str, epoch: int = 0, step: int = 0) -> None:
        """Report what this rank is doing, at most once a second."""
        now = time.monotonic()
        if now - self._last >= BEAT_SECONDS:
            self._last = now
            position = {"phase": phase, "epoch": epoch, "step": step}
            self._write(
                f"rank{self.rank}.heartbeat", {"rank": self.rank, "pid": os.getpid(), **position}
            )

    def report_error(self, error: BaseException) -> None:
        """Report the error that ends this rank."""
        kind = "out_of_memory" if is_out_of_memory(error) else "error"
        name = "" if isinstance(error, ParbenchError) else f"{type(error).__name__}: "
        details = {"kind": kind, "message": f"{name}{error}"}
        self._write(
            f"rank{self.rank}.error.json", {"rank": self.rank, "time": time.time(), **details}
        )

    def stopped(self, place: dict) -> None:
        """Report that this run stopped on request, and where it will resume."""
        self._write("stopped.json", place)

    def _write(self, ending: str, value: dict) -> None:
        if self._folder is None:
            return
        target = self._folder / ending
        # Renamed, so that the launcher never reads half a file. No fsync, as it need not survive a
        # crash.
        temporary = target.with_suffix(".part")
        temporary.write_text(json.dumps(value), encoding="utf-8")
        os.replace(temporary, target)


# The messages of torch's allocators, of the CUDA runtime (also through NCCL), and of libraries that
# allocate memory themselves: cuBLAS, cuDNN, cuSOLVER.
OUT_OF_MEMORY = re.compile(
    r"out of memory|can(?:'t|not) allocate memory|not enough memory|_ALLOC_FAILED", re.IGNORECASE
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` means that memory ran out, on an accelerator or in this process."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and bool(OUT_OF_MEMORY.search(str(error)))


def line(entry: EpochJson, epochs: int, left_seconds: float) -> str:
    """Return the log line of a completed epoch, whose ``entry`` is from the history; there are
    ``epochs`` in all."""
    accuracy = ""  # unknown in runs of a few steps
    if entry["test_accuracy"] is not None:
        accuracy = f"test accuracy {entry['test_accuracy']:.4f}  "
    return (
        f"epoch {entry['epoch']}/{epochs}  loss {entry['train_loss']:.4f}  "
        f"{accuracy}{entry['seconds']:.1f} s  "
        f"{entry['samples_per_second']:,.0f} images/s  about {left_seconds:.0f} s left"
    )
