"""Trains a cell as scripts/train.py does, and tells what the model was fed, sample by sample.

In a test's own process, or as one rank of a strategy's launcher (fed.py DATA FOLDER), which writes
FOLDER/<rank>.json.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch

from parbench import strategies
from parbench.cell import Cell, read
from parbench.training.loop import Run
from parbench.training.progress import Display, Heartbeat


def fed(cell: Cell, data: Path) -> dict:
    """Train ``cell``: ``rank`` and ``history`` of this process, and ``rows``, one a sample.

    A row is (part, epoch, step, index, label, digest of the image as the first layer got it).
    """
    torch.set_num_threads(1)
    strategy = strategies.of(cell)
    strategy.setup()
    run = Run(cell, data, strategy, Heartbeat(strategy.rank))
    asked, images = watch(run)
    run.begin()
    run.train(Display(False, cell.training.epochs, run.samples))
    rows = [[*told, image] for told, image in zip(asked, images, strict=True)]
    result = {"rank": strategy.rank, "rows": rows, "history": run.history}
    del run  # the wrapped model goes before its process group
    strategy.close()
    return result


def watch(run: Run) -> tuple[list, list]:
    """Two lists that grow as ``run`` does: what was asked of the data, and what the model got."""
    asked: list[list] = []
    images: list[str] = []
    train_batch, test_batch = run.augment.train_batch, run.augment.test_batch

    def seen_train_batch(indices, epoch):
        batch = train_batch(indices, epoch)
        for index, label in zip(indices.tolist(), batch[1].tolist(), strict=True):
            asked.append(["train", epoch, run.place.step, index, label])
        return batch

    def seen_test_batch(start, stop):
        batch = test_batch(start, stop)
        for index, label in zip(range(start, stop), batch[1].tolist(), strict=True):
            asked.append(["test", run.place.epoch, 0, index, label])
        return batch

    def seen_input(_, arguments):
        for image in arguments[0]:
            images.append(hashlib.sha256(image.detach().contiguous().numpy().tobytes()).hexdigest())

    run.augment.train_batch, run.augment.test_batch = seen_train_batch, seen_test_batch
    # The first layer, inside of all wrappers: GPipe hands it micro-batches.
    first = next(module for module in run.model.modules() if not list(module.children()))
    first.register_forward_pre_hook(seen_input)
    return asked, images


if __name__ == "__main__":
    data, folder = map(Path, sys.argv[1:])
    result = fed(read(folder / "cell.json"), data)
    (folder / f"{result['rank']}.json").write_text(json.dumps(result))
