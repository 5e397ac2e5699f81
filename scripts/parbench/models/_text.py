"""Text classifiers of the transformers library as sequences of blocks."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn


class Embedding(nn.Module):
    """Embeds tokens and appends the padding mask as a channel: later blocks need it, and only one
    tensor passes between blocks.
    """

    def __init__(self, embeddings: nn.Module, pad: int):
        super().__init__()
        self.embeddings = embeddings
        self.pad = pad

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map [B, L] int64 to [B, L, width + 1]; the last channel is 1 for a token, 0 for
        padding."""
        hidden = self.embeddings(input_ids=tokens)
        return torch.cat([hidden, (tokens != self.pad).unsqueeze(-1).to(hidden.dtype)], -1)


class Block(nn.Module):
    """One of the library's transformer layers, with padding masked out of the attention."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Map [B, L, width + 1] to the same shape."""
        hidden, mask = value[..., :-1].contiguous(), value[..., -1:]
        attended = (mask != 0).transpose(1, 2).unsqueeze(1)  # [B, 1, 1, L]
        hidden = self.layer(hidden, attention_mask=attended)
        return torch.cat([hidden, mask.to(hidden.dtype)], -1)


class Head(nn.Module):
    """Predicts the class with ``layers``, the first of which selects a token."""

    def __init__(self, **layers: nn.Module):
        super().__init__()
        self.layers = nn.Sequential(OrderedDict(layers))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Map [B, L, width + 1] to [B, num_classes] logits."""
        return self.layers(value[..., :-1])


def row(embeddings: nn.Module, pad: int, layers: nn.ModuleList, head: Head) -> nn.Sequential:
    """Return a network's parts as a sequence of blocks."""
    blocks: OrderedDict[str, nn.Module] = OrderedDict(embedding=Embedding(embeddings, pad))
    for index, layer in enumerate(layers):
        blocks[f"block_{index}"] = Block(layer)
    blocks["head"] = head
    return nn.Sequential(blocks)
