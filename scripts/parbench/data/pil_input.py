"""Batches made as in most published code: from PIL images by torchvision's transforms.

Like a DataLoader without workers, it makes one sample at a time in the training process, on one
core, while the device waits. Crops and flips are those of loader.Augment, so that the two inputs
differ only in cost and in rounding: PIL resizes bytes, not floats.
"""

from __future__ import annotations

from typing import Any

import torch

from parbench.data import loader


class PilInput:
    """The counterpart of loader.Augment, with the same arguments, by PIL, image by image."""

    def __init__(
        self, dataset: loader.LoadedDataset, seed: int, image_size: int, augment: bool
    ) -> None:
        self._data = dataset.without_train_images()
        self._seed = seed
        self._side = [image_size, image_size]
        self._augment = augment
        # [N, H, W, 3], as in torchvision's CIFAR-10.
        self._train, self._test = (
            images.permute(0, 2, 3, 1).contiguous().cpu().numpy()
            for images in (dataset.train_images, dataset.test_images)
        )

    def train_batch(self, indices: torch.Tensor, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what loader.Augment.train_batch returns, for at least one sample."""
        indices = indices.cpu()
        images = [self._train[index] for index in indices.tolist()]
        drawn = []
        if self._augment:
            drawn = torch.stack(loader.draws(self._seed, epoch, indices), 1).tolist()
        labels = self._data.train_labels
        return self._batch(images, drawn), labels.index_select(0, indices.to(labels.device))

    def test_batch(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what loader.Augment.test_batch returns, for at least one sample."""
        return self._batch(self._test[start:stop], []), self._data.test_labels[start:stop]

    def _batch(self, images, drawn: list[list[int]]) -> torch.Tensor:
        """Return ``images``, each uint8 [H, W, 3], as float32 [B, 3, S, S]; ``drawn``: their
        draws."""
        from PIL import Image
        from torchvision.transforms import functional as transforms

        functional: Any = transforms  # annotated for tensors only, but accepts PIL images

        tensors = []
        for at, pixels in enumerate(images):
            image = Image.fromarray(pixels)
            if drawn:
                (top, left, flip), (width, height) = drawn[at], image.size
                image = functional.pad(image, [loader.PADDING])
                image = functional.crop(image, top, left, height, width)
                image = functional.hflip(image) if flip else image
            if [image.height, image.width] != self._side:
                image = functional.resize(image, self._side)  # bilinear
            tensor = functional.to_tensor(image)
            tensors.append(functional.normalize(tensor, self._data.mean, self._data.std))
        return torch.stack(tensors).to(self._data.train_labels.device)
