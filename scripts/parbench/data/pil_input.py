"""Batches as most published code makes them: PIL images and torchvision's transforms.

A sample at a time, by a DataLoader without workers: in the process that trains, on its one core,
while the device waits. Crop and flip of a sample are those of loader.Augment, so that both inputs
differ in their cost and in rounding alone: PIL resizes bytes, not floats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch.utils.data import DataLoader, Dataset

from parbench.data import loader

if TYPE_CHECKING:
    from PIL import Image


class _Asked:
    """A sampler of batches that gives the one that was asked for last, as often as it is asked."""

    def __init__(self) -> None:
        self.keys: list[tuple[int, ...]] = []

    def __iter__(self) -> Iterator[list[tuple[int, ...]]]:
        while True:
            yield self.keys


class _Samples(Dataset):
    """Samples of one part of a dataset by (index, what ``change`` needs to know of it).

    As torchvision's CIFAR-10 holds them: pixels side by side, each made a PIL image when it is
    asked for.
    """

    def __init__(
        self,
        images: torch.Tensor,
        labels: torch.Tensor,
        change: Callable[..., Image.Image],
        finish: Callable[[Image.Image], torch.Tensor],
    ) -> None:
        self._images = images.permute(0, 2, 3, 1).contiguous().cpu().numpy()
        self._labels = labels.tolist()
        self._change, self._finish = change, finish

    def __getitem__(self, key: tuple[int, ...]) -> tuple[torch.Tensor, int]:
        from PIL import Image

        index, *drawn = key
        image = Image.fromarray(self._images[index])
        return self._finish(self._change(image, *drawn)), self._labels[index]


class PilInput:
    """What loader.Augment is, with the same arguments, made of PIL images one by one."""

    def __init__(self, dataset: loader.Dataset, seed: int, image_size: int, augment: bool) -> None:
        from torchvision.transforms import functional

        self._device = dataset.train_labels.device
        self._seed = seed
        self._augment = augment
        side = [image_size, image_size]

        def finish(image: Image.Image) -> torch.Tensor:
            if [image.height, image.width] != side:
                image = functional.resize(image, side)  # bilinear
            return functional.normalize(functional.to_tensor(image), dataset.mean, dataset.std)

        def crop_and_flip(image: Image.Image, *drawn: int) -> Image.Image:
            if not drawn:
                return image
            (top, left, flip), (width, height) = drawn, image.size
            image = functional.pad(image, [loader.PADDING])
            image = functional.crop(image, top, left, height, width)
            return functional.hflip(image) if flip else image

        self._parts = {}
        for part in ("train", "test"):
            images, labels = (getattr(dataset, f"{part}_{what}") for what in ("images", "labels"))
            samples, asked = _Samples(images, labels, crop_and_flip, finish), _Asked()
            # A generator of its own: a DataLoader draws a number, and dropout must not notice.
            batches = DataLoader(samples, batch_sampler=asked, generator=torch.Generator())
            self._parts[part] = asked, iter(batches)

    def train_batch(self, indices: torch.Tensor, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As loader.Augment's, of at least one sample."""
        keys = [indices.cpu()]
        if self._augment:
            keys += loader.draws(self._seed, epoch, keys[0])
        return self._batch("train", torch.stack(keys, 1))

    def test_batch(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As loader.Augment's, of at least one sample."""
        return self._batch("test", torch.arange(start, stop)[:, None])

    def _batch(self, part: str, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        asked, batches = self._parts[part]
        asked.keys = keys.tolist()
        images, labels = next(batches)
        return images.to(self._device), labels.to(self._device)
