"""What one would write by hand instead of a cell: torchvision's ResNet-50, SGD, a loop.

A program that prints the seconds of the timed epoch, on one rank or on two with DDP. Its batches
lie in memory, normalised, without augmentation.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

import torch
from safetensors.torch import load_file
from torch import distributed, multiprocessing
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torchvision.models import get_model


def work(rank: int, given: argparse.Namespace, store: str) -> None:
    """What a rank does: two steps that warm up, then all of them by the clock."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    stored = load_file(given.data)
    pixels = stored["train_images"] / 255
    pixels = (pixels - pixels.mean()) / pixels.std()
    batches = []
    for start in range(0, given.steps * given.batch, given.batch):
        share = torch.arange(start, start + given.batch).tensor_split(given.ranks)[rank]
        batches.append((pixels[share], stored["train_labels"][share]))

    torch.manual_seed(0)
    model: torch.nn.Module = get_model("resnet50", num_classes=10).train()
    if given.ranks > 1:
        distributed.init_process_group("gloo", store, rank=rank, world_size=given.ranks)
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)
    for number, (images, labels) in enumerate([*batches[:2], *batches]):
        if number == 2:
            begun = time.perf_counter()
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    if rank == 0:
        print(time.perf_counter() - begun)
    del model  # before its process group
    if given.ranks > 1:
        distributed.destroy_process_group()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="a converted dataset's file")
    parser.add_argument("ranks", type=int)
    parser.add_argument("batch", type=int, help="images of a batch, of all ranks")
    parser.add_argument("steps", type=int, help="batches of the epoch")
    given = parser.parse_args()
    if given.ranks == 1:
        work(0, given, "")
        return
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (given, f"file://{folder}/store"), given.ranks)


if __name__ == "__main__":
    main()
