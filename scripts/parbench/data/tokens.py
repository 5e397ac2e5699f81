"""Texts in a training process: token ids on one device, and batches of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from parbench.errors import ParbenchError

if TYPE_CHECKING:
    from parbench.data.loader import Dataset


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary of ``size`` tokens; ids of the padding, first and last token of a text."""

    size: int
    pad: int
    first: int
    last: int


def vocabulary(metadata: dict[str, str], kind: str, where: object) -> Vocabulary:
    """Return the vocabulary ``kind`` of a converted dataset. ParbenchError if it has none."""
    vocabularies = json.loads(metadata.get("vocabularies", "{}"))
    if kind not in vocabularies:
        content = f"texts cut by {', '.join(vocabularies)}" if vocabularies else "images"
        raise ParbenchError(
            f"{where}: the model takes texts that are cut by {kind}, the dataset holds {content}; "
            "choose another dataset or model"
        )
    return Vocabulary(**vocabularies[kind])


def rows(
    tokens: torch.Tensor, offsets: torch.Tensor, of: Vocabulary, max_length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return texts as padded rows, int32 [N, max_length], and their lengths, int64 [N].

    ``tokens`` [T] holds all texts' tokens, ``offsets`` [N + 1] where each text begins. Longer texts
    are truncated; every text gets the vocabulary's first and last token.
    """
    lengths = (offsets[1:] - offsets[:-1]).clamp(max=max_length - 2)
    positions = torch.arange(max_length - 2)
    mask = positions < lengths[:, None]
    padded = torch.full((len(lengths), max_length), of.pad, dtype=torch.int32)
    padded[:, 0] = of.first
    padded[:, 1:-1][mask] = tokens[(offsets[:-1, None] + positions)[mask]]
    padded[torch.arange(len(lengths)), lengths + 1] = of.last
    return padded, lengths + 2


class TextInput:
    """The counterpart of loader.Augment for texts, which are not augmented."""

    def __init__(self, dataset: Dataset, padding: str) -> None:
        self._data = dataset
        self._longest = padding == "longest"

    def train_batch(self, indices: torch.Tensor, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens int64 [B, L] and labels int64 [B] of the training samples ``indices``."""
        data = self._data
        length = self._length(data.train_lengths[indices.cpu()])
        indices = indices.to(data.train_labels.device, non_blocking=True)
        tokens = data.train_images[:, :length].index_select(0, indices)
        return tokens.long(), data.train_labels.index_select(0, indices)

    def test_batch(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return test samples start..stop-1: tokens int64 [B, L], labels int64 [B]."""
        data = self._data
        length = self._length(data.test_lengths[start:stop])
        tokens = data.test_images[start:stop, :length]
        return tokens.long(), data.test_labels[start:stop]

    def _length(self, lengths: torch.Tensor) -> int:
        if self._longest and len(lengths):
            return int(lengths.max())
        return self._data.train_images.shape[1]


def counted(
    lengths: torch.Tensor, shares: Iterable[torch.Tensor], longest: bool, max_length: int
) -> tuple[int, int]:
    """Count the tokens in the batches ``shares`` (sample indices), without and with padding."""
    tokens = padded = 0
    for share in shares:
        sizes = lengths[share]
        tokens += int(sizes.sum())
        padded += len(sizes) * (int(sizes.max()) if longest and len(sizes) else max_length)
    return tokens, padded
