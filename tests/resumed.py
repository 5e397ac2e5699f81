"""Train cells as one of several ranks, which all are started once: each cell to its end, and again
with stops on the way.

    torchrun ... tests/resumed.py DATA FOLDER...

Leaves FOLDER/whole and FOLDER/ended for each FOLDER/cell.json; every cell has as many ranks.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import torch
from torch import distributed

import strategies
import train
from progress import Pulse


class Until(Pulse):
    """Asks for the end at the ``number``-th beat, as the launcher does: by a file."""

    def __init__(self, state: Path, number: int):
        super().__init__(0)
        self.state, self.number = state, number

    def beat(self, phase: str, epoch: int = 0, step: int = 0) -> None:
        """One of them."""
        self.number -= 1
        if self.number == 0:
            (self.state / "stop").touch()


def together() -> None:
    """Wait for the others."""
    distributed.all_reduce(torch.zeros(1))


def resumed(folder: Path, data: Path) -> None:
    """FOLDER/cell.json, on this rank."""
    value = json.loads((folder / "cell.json").read_text())
    state = folder / "state"
    os.environ["PARBENCH_STATE"] = str(state)
    rank, draw = int(os.environ["RANK"]), random.Random(str(folder.name))
    if rank == 0:
        for each in (state, folder / "whole", folder / "ended"):
            each.mkdir()

    def train_to(name: str, beats: int) -> bool:
        """Whether it came to its end, and not to that many beats of rank 0."""
        together()
        out = folder / name / "metrics.json"
        pulse = Until(state, beats) if rank == 0 else Pulse(rank)
        train.train(
            value, data, out, strategies.load(value["strategy"]["name"]).Strategy(value), pulse
        )
        together()
        done = out.exists()
        together()
        if rank == 0:
            for file in state.iterdir():
                file.unlink()
        return done

    assert train_to("whole", 10**9)
    while not train_to("ended", draw.randint(5, 10)):
        pass


def main() -> None:
    """The command line of one rank."""
    data, *folders = map(Path, sys.argv[1:])
    distributed.init_process_group("gloo")
    distributed.init_process_group = lambda *arguments, **named: None  # once is enough
    for folder in folders:
        resumed(folder, data)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
