"""Train a cell's network on its images by a loop other than parbench's: a program for `versus`.

    python peer_loop.py <way> <cell.json> <folder of the dataset>

Ways: `parbench`; `loader`, a plain loop with a DataLoader and torchvision's transforms; `lightning`
and `accelerate`, the same by these libraries. All of them draw crops and flips, on one core.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from parbench_turns import step
from PIL import Image
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from parbench import models
from parbench.cell import Cell
from parbench.cell import read as read_cell
from parbench.data import loader
from parbench.training.pair_rank import training_steps
from parbench.training.set_up import rank_of, set_up

PADDING = 4  # pixels, of crops


class Images(Dataset):
    """The training images of a dataset, as torchvision's own datasets hand them out."""

    def __init__(self, data: loader.LoadedDataset, size: int):
        self.images = data.train_images.permute(0, 2, 3, 1).numpy()
        self.labels = data.train_labels.tolist()
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(size, PADDING),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(data.mean, data.std),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(self.images[index])), self.labels[index]


def made(cell: Cell, folder: Path) -> tuple[torch.nn.Module, torch.optim.Optimizer, DataLoader]:
    """Return the cell's network, its optimizer, and a DataLoader of batches of full size."""
    torch.set_num_threads(cell.hardware.threads)
    training, data = cell.training, loader.load(folder, torch.device("cpu"))
    blocks = models.load(cell.model.name)
    network = blocks.build(len(data.classes), training.image_size, cell.model.options)
    optimizer = torch.optim.SGD(
        network.parameters(), training.learning_rate, momentum=training.momentum
    )
    images = Images(data, training.image_size)
    return network, optimizer, DataLoader(images, training.global_batch, True, drop_last=True)


def by_parbench(cell: Cell, folder: Path) -> None:
    """Train by parbench's loop."""
    with rank_of(cell) as (strategy, heartbeat):
        run, _ = set_up(cell, folder, strategy, heartbeat)
        take = training_steps(run)
        while True:
            step(samples=take())


def by_loader(cell: Cell, folder: Path) -> None:
    """Train by a plain loop."""
    network, optimizer, batches = made(cell, folder)
    while True:
        for images, labels in batches:
            optimizer.zero_grad()
            functional.cross_entropy(network(images), labels).backward()
            optimizer.step()
            step(samples=len(images))


def by_lightning(cell: Cell, folder: Path) -> None:
    """Train by PyTorch Lightning."""
    import lightning

    network, optimizer, batches = made(cell, folder)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
            images, labels = batch
            return functional.cross_entropy(self.network(images), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

        def on_train_batch_end(self, outputs: object, batch: list, number: int) -> None:
            step(samples=len(batch[0]))

    quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "logger": False}
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=-1, **quiet)
    trainer.fit(Module(), batches)


def by_accelerate(cell: Cell, folder: Path) -> None:
    """Train by Hugging Face's accelerate."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    network, optimizer, batches = accelerator.prepare(*made(cell, folder))
    while True:
        for images, labels in batches:
            optimizer.zero_grad()
            accelerator.backward(functional.cross_entropy(network(images), labels))
            optimizer.step()
            step(samples=len(images))


WAYS: dict[str, Callable[[Cell, Path], None]] = {
    "parbench": by_parbench,
    "loader": by_loader,
    "lightning": by_lightning,
    "accelerate": by_accelerate,
}

if __name__ == "__main__":
    way, cell_file, data_folder = sys.argv[1:]
    WAYS[way](read_cell(Path(cell_file)), Path(data_folder))
