"""Input and output layers of timm's Vision Transformers, split off from their blocks."""

from __future__ import annotations

from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn


class Embedding(nn.Module):
    """Projects patches to tokens, prepends prefix tokens, and adds learned positions."""

    def __init__(self, network: Any):  # a VisionTransformer of timm
        super().__init__()
        self.cls_token = network.cls_token
        self.pos_embed = network.pos_embed
        self.dist_token = getattr(network, "dist_token", None)
        self.patch_embed = network.patch_embed
        self.pos_drop = network.pos_drop

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map [B, 3, S, S] to [B, prefix tokens + patches, width]."""
        patches = self.patch_embed(images)
        prefix = [token for token in (self.cls_token, self.dist_token) if token is not None]
        tokens = [token.to(patches.dtype).expand(len(images), -1, -1) for token in prefix]
        return self.pos_drop(torch.cat([*tokens, patches], 1) + self.pos_embed)


class Head(nn.Module):
    """Predicts the class from the class token, and from the distillation token if there is one."""

    def __init__(self, network: VisionTransformer):
        super().__init__()
        self.norm = network.norm
        self.head = network.head
        self.head_dist = getattr(network, "head_dist", None)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map [B, T, width] to [B, num_classes] logits; two heads are averaged."""
        tokens = self.norm(tokens)
        logits = self.head(tokens[:, 0])
        if self.head_dist is None:
            return logits
        return (logits + self.head_dist(tokens[:, 1])) / 2
