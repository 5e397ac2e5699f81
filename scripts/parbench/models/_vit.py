"""Parts of a Vision Transformer that torchvision lacks or does not separate."""

from __future__ import annotations

import torch
from torch import nn
from torchvision.models.vision_transformer import EncoderBlock, VisionTransformer
from torchvision.ops import StochasticDepth


class Embedding(nn.Module):
    """Projects patches to tokens, prepends the class token, and adds learned positions."""

    def __init__(self, network: VisionTransformer):
        super().__init__()
        self.class_token = network.class_token
        self.conv_proj = network.conv_proj
        self.positions = Positions(network)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map [B, 3, S, S] to [B, 1 + patches, width]."""
        patches = self.conv_proj(images).flatten(2).transpose(1, 2)
        token = self.class_token.to(patches.dtype).expand(len(images), -1, -1)
        return self.positions(torch.cat([token, patches], 1))


class Positions(nn.Module):
    """Adds the learned position of each token."""

    def __init__(self, network: VisionTransformer):
        super().__init__()
        self.pos_embedding = network.encoder.pos_embedding
        self.dropout = network.encoder.dropout

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map [B, T, width] to the same shape."""
        return self.dropout(tokens + self.pos_embedding)


class Block(nn.Module):
    """torchvision's pre-norm block, with stochastic depth on both of its branches."""

    def __init__(self, block: EncoderBlock, probability: float):
        super().__init__()
        self.block = block
        self.stochastic_depth = StochasticDepth(probability, "row")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map [B, T, width] to the same shape."""
        block = self.block
        value = block.ln_1(tokens)
        value, _ = block.self_attention(value, value, value, need_weights=False)
        tokens = tokens + self.stochastic_depth(block.dropout(value))
        return tokens + self.stochastic_depth(block.mlp(block.ln_2(tokens)))


class ClassToken(nn.Module):
    """Selects the class token, from which the head predicts the class."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map [B, T, width] to [B, width]."""
        return tokens[:, 0]
