"""Checkpoints of a cell: where its training stands, so that a run that was ended can go on.

A checkpoint is one safetensors file with JSON in its metadata: nothing is unpickled. Its name has
the number of steps and a digest, which is checked when it is read.
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
from parbench.cell import Cell
from parbench.training import launched

if TYPE_CHECKING:
    import torch

KEPT = 2  # the last one, and one more in case that it is damaged
# How often the ranks look up from their work. The end of a run waits for this at most about twice.
LOOK_SECONDS = 1.0


def folder(out: Path, companion: int = 0) -> Path:
    """Where the checkpoints of the run that writes ``out`` lie; within it those of a companion."""
    own = out.parent / "checkpoints"
    return own / f"beside-{companion}" if companion else own


def written(folder: Path) -> list[Path]:
    """The checkpoints in ``folder``, from the first to the last."""
    return sorted(folder.glob("*.safetensors"))


def key(cell: Cell, environment: dict) -> dict[str, str | None]:
    """What a checkpoint rests on, in words: it is of no use when any of it has changed."""
    settings = {name: value for name, value in cell.json().items() if name != "run"}
    return {
        "the settings": files.digest(settings),
        "the code": environment["code_digest"],
        "the image": environment["image"],
        "the software": files.digest([environment["python"], environment["packages"]]),
        "the dataset": environment["dataset_digest"],
    }


@dataclass
class Place:
    """How far training has come: ``step`` steps of ``epoch`` (from 0) are done.

    ``seconds`` is what these steps took, on the slowest rank; ``loss`` the sum of this rank's.
    """

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    loss: float = 0.0

    def told(self) -> dict[str, int]:
        """For a reader, who counts epochs from 1."""
        return {"epoch": self.epoch + 1, "step": self.step}


class Store:
    """The checkpoints in one folder, by number: the steps that are done.

    ``key`` is that of the run that reads and writes them.
    """

    def __init__(self, folder: Path, key: dict[str, str | None]):
        self.folder = folder
        self.key = key

    def write(self, number: int, tensors: dict[str, torch.Tensor], state: dict) -> None:
        """Write a checkpoint; the last ``KEPT`` stay."""
        from safetensors.torch import save_file

        # Contiguous and on the CPU: safetensors takes no other.
        tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        record = json.dumps({"key": self.key, "state": state})
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / "unfinished.part"
        save_file(tensors, part, {"record": record})
        part.replace(self.folder / f"{number:010d}.{_digest(part)}.safetensors")
        _delete(written(self.folder)[:-KEPT])

    def find(self) -> int | None:
        """The newest checkpoint that is whole and of this run; those that are not are deleted, and
        the log says so.
        """
        for path in reversed(written(self.folder)):
            if path.name.split(".")[1] != _digest(path):
                print(f"checkpoint: {path} is damaged; the one before it is tried", flush=True)
                _delete([path])
                continue
            then = _record(path)["key"]
            changed = [name for name, value in self.key.items() if then.get(name) != value]
            if not changed:
                return _number(path)
            why = f"{' and '.join(changed)} changed since {path} was written"
            print(f"checkpoint: starts afresh: {why}", flush=True)
            _delete(written(self.folder))
            break
        return None

    def read(self, number: int) -> tuple[dict, dict[str, torch.Tensor]]:
        """State and tensors (on the CPU) of a checkpoint that ``find`` found."""
        from safetensors.torch import load_file

        path = next(path for path in written(self.folder) if _number(path) == number)
        # Not mapped: the optimizer keeps these tensors, and the file is deleted under them.
        return _record(path)["state"], load_file(path, backend="pread")


def _delete(paths: list[Path]) -> None:
    for path in paths:
        path.unlink()


def _number(path: Path) -> int:
    return int(path.name.split(".")[0])


def _digest(path: Path) -> str:
    """As much of a file's SHA-256 as finds any damage."""
    return files.sha256_file(path)[:16]


def _record(path: Path) -> dict:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["record"])


@dataclass
class Stride:
    """Every how many steps the ranks look up: ``length``, of which ``left`` are to come."""

    length: int = 1
    left: int = 1
    since: float = field(default_factory=lambda: time.monotonic())


class Lookout:
    """About once a second all ranks look up from their work, after the same step.

    They must act together, and a message each step would cost too much: so they agree, from the
    time that the last steps took, on the step after which they look up next. ``combined`` is
    Strategy.reduced.
    """

    def __init__(
        self, every: float, rank: int, combined: Callable[[list[float], str], list[float]]
    ):
        self.stop = False  # whether the launcher asked for the end
        self._every = every
        self._look = min(LOOK_SECONDS, every)
        self._rank = rank
        self._combined = combined
        state = os.environ.get("PARBENCH_STATE")  # not set when train.py was started by hand
        self._asked = Path(state) / "stop" if state else None
        self._strides: defaultdict[str, Stride] = defaultdict(Stride)
        self.wrote()

    def wrote(self) -> None:
        """The time until the next checkpoint counts from now."""
        self._written = time.monotonic()

    def due(self, phase: str) -> bool:
        """Called after each step of ``phase``: whether all ranks write a checkpoint now.

        After it they end, when ``stop`` is set.
        """
        stride = self._strides[phase]
        stride.left -= 1
        if stride.left > 0:
            return False
        now = time.monotonic()
        due = asked = False
        if self._rank == 0:
            due = now - self._written >= self._every
            asked = self._asked is not None and self._asked.exists()
        asked = asked or launched.asked_to_stop.is_set()  # Slurm asks any of them
        mine = [now - stride.since, float(due), float(asked)]
        seconds, due, asked = self._combined(mine, "max")
        # At most twice as many: a few quick steps promise nothing.
        steps = min(2.0, self._look / max(seconds, 1e-9)) * stride.length
        stride.length = stride.left = max(1, int(steps))
        stride.since = time.monotonic()
        self.stop = bool(asked)
        return bool(due) or self.stop
