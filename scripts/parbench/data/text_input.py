"""Batches of texts, as token ids on one device."""

from __future__ import annotations

import torch

from parbench.data.loader import LoadedDataset


class TextInput:
    """The counterpart of loader.Augment for texts, which are not augmented."""

    def __init__(self, dataset: LoadedDataset, padding: str) -> None:
        self._data = dataset
        self._longest = padding == "longest"

    def train_batch(self, indices: torch.Tensor, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens int64 [B, L] and labels int64 [B] of the training samples ``indices``."""
        data = self._data
        assert data.train_lengths is not None
        length = self._length(data.train_lengths[indices.cpu()])
        indices = indices.to(data.train_labels.device, non_blocking=True)
        tokens = data.train_images[:, :length].index_select(0, indices)
        return tokens.long(), data.train_labels.index_select(0, indices)

    def test_batch(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return test samples start..stop-1: tokens int64 [B, L], labels int64 [B]."""
        data = self._data
        assert data.test_lengths is not None
        length = self._length(data.test_lengths[start:stop])
        tokens = data.test_images[start:stop, :length]
        return tokens.long(), data.test_labels[start:stop]

    def _length(self, lengths: torch.Tensor) -> int:
        if self._longest and len(lengths):
            return int(lengths.max())
        return self._data.train_images.shape[1]
