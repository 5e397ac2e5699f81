"""Batches of images that stay on disk, for datasets larger than a device's or machine's memory.

One thread, on the cores of the training process, reads ahead: while a step computes, it reads the
images of the next steps, for a GPU into pinned memory.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from parbench.data import loader

AHEAD = 2  # number of batches that are read before they are needed


class DiskInput:
    """The counterpart of loader.Augment, with the same arguments, whose images stay on disk.

    Its crops and flips give the same bits. ``waited``: seconds that steps waited for images that
    were being read ahead, as the images of all timed steps are.
    """

    def __init__(
        self, dataset: loader.LoadedDataset, seed: int, image_size: int, augment: bool
    ) -> None:
        self._data, self._seed, self._augment = dataset, seed, augment
        self._finish = loader.Augment(dataset, seed, image_size, augment=False).finish
        self._device = dataset.train_labels.device
        self._reader = ThreadPoolExecutor(1)
        self._read: deque[tuple[torch.Tensor, Future[torch.Tensor]]] = deque()
        self.waited = 0.0

    def ahead(
        self,
        batches: Iterable[tuple[torch.Tensor, int]],
        shares: Callable[[torch.Tensor], Iterable[torch.Tensor]],
    ) -> Iterator[tuple[torch.Tensor, int]]:
        """Yield ``batches`` (sample indices and epoch), while the next ones are read; ``shares``
        returns the parts of a batch that this rank will request."""
        for _, reading in self._read:
            reading.cancel()
        self._read.clear()
        upcoming: deque[tuple[torch.Tensor, int]] = deque()
        for batch in batches:
            upcoming.append(batch)
            for indices in shares(batch[0]):
                self._read.append((indices, self._submit("train", indices)))
            if len(upcoming) > AHEAD:
                yield upcoming.popleft()
        yield from upcoming

    def _submit(self, part: str, indices: torch.Tensor) -> Future[torch.Tensor]:
        pinned = self._device.type == "cuda"
        assert self._data.on_disk is not None
        return self._reader.submit(self._data.on_disk[part].read, indices, pinned)

    def _taken(self, indices: torch.Tensor) -> torch.Tensor:
        """Return training images that were read ahead, else read them."""
        if not (self._read and torch.equal(self._read[0][0], indices)):
            return self._submit("train", indices).result()
        began = time.perf_counter()
        images = self._read.popleft()[1].result()
        self.waited += time.perf_counter() - began
        return images

    def train_batch(self, indices: torch.Tensor, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what loader.Augment.train_batch returns; ``indices`` are on the CPU."""
        images = self._taken(indices).to(self._device, non_blocking=True)
        indices = indices.to(self._device, non_blocking=True)
        if self._augment:
            images = _cropped(images, *loader.draws(self._seed, epoch, indices))
        return self._finish(images), self._data.train_labels.index_select(0, indices)

    def test_batch(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what loader.Augment.test_batch returns, reading it from disk."""
        read = self._submit("test", torch.arange(start, stop)).result()
        images = read.to(self._device, non_blocking=True)
        return self._finish(images), self._data.test_labels[start:stop]


def _cropped(
    images: torch.Tensor, top: torch.Tensor, left: torch.Tensor, flip: torch.Tensor
) -> torch.Tensor:
    """Return images [B, 3, H, W] padded, cropped at ``top`` and ``left`` [B], and mirrored where
    ``flip`` [B] is 1."""
    count, channels, height, width = images.shape
    padded = torch.nn.functional.pad(images, [loader.PADDING] * 4)
    rows = top[:, None] + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device).expand(count, width)
    columns = left[:, None] + torch.where(flip[:, None] == 1, width - 1 - columns, columns)
    shape = (count, channels, height)
    padded = padded.gather(2, rows[:, None, :, None].expand(*shape, padded.shape[3]))
    return padded.gather(3, columns[:, None, None, :].expand(*shape, width))
