"""Write, find and read checkpoints of a cell, from which an interrupted run resumes.

A checkpoint is one safetensors file with JSON in its metadata, so nothing is unpickled. Its name
contains the number of steps and a digest, which is checked on reading.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from parbench import files
from parbench.identity import Identity
from parbench.training import launched

if TYPE_CHECKING:
    import torch

KEPT = 2  # the last checkpoint, and one more in case the last is damaged
# Interval at which all ranks check for requests. A request waits at most about twice as long.
POLL_SECONDS = 1.0


def folder(out: Path, companion: int = 0) -> Path:
    """Return the folder for checkpoints of the run that writes ``out``, or of a companion."""
    checkpoints = out.parent / "checkpoints"
    return checkpoints / f"beside-{companion}" if companion else checkpoints


def written(folder: Path) -> list[Path]:
    """Return the checkpoints in ``folder``, oldest first."""
    return sorted(folder.glob("*.safetensors"))


@dataclass
class Place:
    """How far training has come: ``step`` steps of ``epoch`` (counted from 0) are done.

    ``seconds``: time of these steps on the slowest rank; ``loss``: sum of this rank's losses.
    """

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    loss: float = 0.0

    def json(self) -> dict[str, int]:
        """Return epoch, counted from 1 as users do, and step."""
        return {"epoch": self.epoch + 1, "step": self.step}


class Store:
    """The checkpoints in one folder, numbered by completed steps.

    ``identity``: identity of the run that reads and writes them.
    """

    def __init__(self, folder: Path, identity: Identity):
        self.folder = folder
        self.identity = identity

    def write(self, number: int, tensors: dict[str, torch.Tensor], state: dict) -> None:
        """Write a checkpoint and delete all but the last ``KEPT``."""
        from safetensors.torch import save_file

        # safetensors takes only contiguous tensors on the CPU.
        tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        record = json.dumps({"identity": self.identity.json(), "state": state})
        files.make_folder(self.folder)
        part = self.folder / "unfinished.part"
        save_file(tensors, part, {"record": record})
        # The file must be on disk before the older ones are deleted.
        files.rename_durably(part, self.folder / f"{number:010d}.{_digest(part)}.safetensors")
        _delete(written(self.folder)[:-KEPT])

    def find(self) -> int | None:
        """Return the number of the newest intact checkpoint with this run's identity, or None.

        Deletes damaged and outdated checkpoints and reports it in the log.
        """
        for path in reversed(written(self.folder)):
            if path.name.split(".")[1] != _digest(path):
                print(f"checkpoint: {path} is damaged; trying the one before it", flush=True)
                _delete([path])
                continue
            try:
                changes = self.identity.changes_since(Identity.of(_record(path)["identity"]))
            except (LookupError, TypeError, ValueError):
                changes = ["another version of parbench wrote it"]
            if not changes:
                return _number(path)
            print(
                f"checkpoint: starts from the beginning, not from {path}: {'; '.join(changes)}",
                flush=True,
            )
            _delete(written(self.folder))
            break
        return None

    def read(self, number: int) -> tuple[dict, dict[str, torch.Tensor]]:
        """Return the state and the tensors (on the CPU) of a checkpoint that ``find`` returned."""
        from safetensors.torch import load_file

        path = next(path for path in written(self.folder) if _number(path) == number)
        # Not memory-mapped: the optimizer keeps these tensors after the file is deleted.
        return _record(path)["state"], load_file(path, backend="pread")


def _delete(paths: list[Path]) -> None:
    for path in paths:
        path.unlink()


def _number(path: Path) -> int:
    return int(path.name.split(".")[0])


def _digest(path: Path) -> str:
    """Return the first digits of a file's SHA-256, enough to detect damage."""
    return files.sha256_file(path)[:16]


def _record(path: Path) -> dict:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["record"])


@dataclass
class Stride:
    """The steps between two checks: ``length`` in all, of which ``remaining`` are still to come."""

    length: int = 1
    remaining: int = 1
    since: float = field(default_factory=lambda: time.monotonic())


class CheckpointTimer:
    """Makes all ranks check for requests about once a second, all after the same step.

    A message after each step would cost too much. At each check the ranks agree, from the time that
    the last steps took, on the number of steps until the next check. ``every``: seconds between
    checkpoints; ``combined``: Strategy.reduced.
    """

    def __init__(
        self, every: float, rank: int, combined: Callable[[list[float], str], list[float]]
    ):
        self.stop = False  # whether the launcher asked to stop
        self._every = every
        self._interval = min(POLL_SECONDS, every)
        self._rank = rank
        self._combined = combined
        state = os.environ.get("PARBENCH_STATE")  # not set if train.py was started by hand
        self._stop_file = Path(state) / "stop" if state else None
        self._strides: defaultdict[str, Stride] = defaultdict(Stride)
        self.restart()

    def restart(self) -> None:
        """Restart the clock for the next checkpoint."""
        self._written = time.monotonic()

    def due(self, phase: str) -> bool:
        """Return whether all ranks must write a checkpoint now; called after each step.

        If ``stop`` is set, they must stop after writing it.
        """
        stride = self._strides[phase]
        stride.remaining -= 1
        if stride.remaining > 0:
            return False
        now = time.monotonic()
        due = stop_asked = False
        if self._rank == 0:
            due = now - self._written >= self._every
            stop_asked = self._stop_file is not None and self._stop_file.exists()
        stop_asked = stop_asked or launched.asked_to_stop.is_set()  # Slurm may signal any rank
        own_values = [now - stride.since, float(due), float(stop_asked)]
        seconds, due, stop_asked = self._combined(own_values, "max")
        # At most doubled, in case the last steps were unusually fast.
        steps = min(2.0, self._interval / max(seconds, 1e-9)) * stride.length
        stride.length = stride.remaining = max(1, int(steps))
        stride.since = time.monotonic()
        self.stop = bool(stop_asked)
        return bool(due) or self.stop
