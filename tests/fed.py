"""Trains a cell as scripts/train.py does, and tells what the model was fed, sample by sample.

In a test's own process; as one rank of a strategy's launcher (fed.py rank DATA FOLDER), which
writes FOLDER/<rank>.json; or as all ranks of ddp cells (fed.py forks DATA FOLDER...): forks of one
process, because importing torch takes much longer than all that they do.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import socket
import sys
from pathlib import Path

import torch

import strategies
import train
from progress import Display, Pulse


def fed(cell: dict, data: Path) -> dict:
    """Train ``cell``: ``rank`` and ``history`` of this process, and ``rows``, one a sample.

    A row is (part, epoch, step, index, label, digest of the image as the first layer got it).
    """
    torch.set_num_threads(1)
    strategy = strategies.load(cell["strategy"]["name"]).Strategy(cell)
    strategy.setup()
    run = train.Run(cell, data, strategy, Pulse(strategy.rank))
    asked, images = watch(run)
    run.begin()
    run.train(Display(False, cell["training"]["epochs"], len(run.bounds), run.samples))
    rows = [[*told, image] for told, image in zip(asked, images, strict=True)]
    result = {"rank": strategy.rank, "rows": rows, "history": run.history}
    del run  # the wrapped model goes before its process group
    strategy.close()
    return result


def watch(run: train.Run) -> tuple[list, list]:
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


def rank(folder: Path, data: Path) -> None:
    """Train FOLDER/cell.json as the rank that the environment says."""
    result = fed(json.loads((folder / "cell.json").read_text()), data)
    (folder / f"{result['rank']}.json").write_text(json.dumps(result))


def forks(folder: Path, data: Path) -> None:
    """Train FOLDER/cell.json in as many forks as the cell has ranks."""
    import torch._dynamo  # noqa: F401 - what each rank would import for itself
    import torchvision  # noqa: F401

    value = json.loads((folder / "cell.json").read_text())
    number = strategies.load(value["strategy"]["name"]).processes(value)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(number)}
    ranks = []
    for index in range(number):
        os.environ |= {"RANK": str(index), "LOCAL_RANK": str(index)}
        ranks.append(multiprocessing.get_context("fork").Process(target=rank, args=(folder, data)))
        ranks[-1].start()
    for process in ranks:
        process.join()
    assert not any(process.exitcode for process in ranks)


if __name__ == "__main__":
    mode, data, *folders = sys.argv[1:]
    for folder in folders:
        {"rank": rank, "forks": forks}[mode](Path(folder), Path(data))
