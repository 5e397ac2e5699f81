"""Tokens of a converted text dataset: their vocabulary, padded rows, and counts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from parbench.errors import ParbenchError


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary of ``size`` tokens; ids of the padding, first and last token of a text."""

    size: int
    pad: int
    first: int
    last: int


def vocabulary(metadata: dict[str, str], kind: str, where: object) -> Vocabulary:
    """Return the vocabulary ``kind`` of a converted dataset. Raises ParbenchError if it has
    none."""
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
