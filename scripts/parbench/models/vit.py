"""Vision Transformer from torchvision (Dosovitskiy et al. 2021) with stochastic depth; the defaults
suit images of 32x32.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

from parbench.models import _cuts
from parbench.models._options import number, share

if TYPE_CHECKING:
    from torch import nn


OPTIONS: dict[str, dict] = {
    "patch_size": number("side of a patch, in pixels", 4, 1024),
    "hidden_dim": number("width of a token", 192, 16384),
    "depth": number("transformer blocks", 6, 1000),
    "num_heads": number("attention heads of a block", 3, 1024),
    "mlp_dim": number("width inside a block's two fully connected layers", 768, 65536),
    "dropout": share("dropout of embeddings and branches", 0.1),
    "stochastic_depth": share(
        "probability that the last block's branches are skipped; rising from 0 at the first", 0.1
    ),
}
SMALL = {"hidden_dim": 12, "depth": 4, "num_heads": 2, "mlp_dim": 24}

cuts = partial(_cuts.transformer, "vit", "hidden_dim")


def build(num_classes: int, image_size: int, options: dict) -> nn.Sequential:
    """Build the model: [B, 3, S, S] float -> [B, num_classes] logits.

    Raises ParbenchError if S is not a multiple of the patch size.
    """
    _cuts.check_patches("vit", image_size, options)
    from torch import nn
    from torchvision.models.vision_transformer import VisionTransformer

    from parbench.models import _vit

    depth = options["depth"]
    network: Any = VisionTransformer(
        image_size,
        options["patch_size"],
        depth,
        options["num_heads"],
        options["hidden_dim"],
        options["mlp_dim"],
        options["dropout"],
        num_classes=num_classes,
    )
    blocks: OrderedDict[str, nn.Module] = OrderedDict(embedding=_vit.Embedding(network))
    for index, block in enumerate(network.encoder.layers):
        probability = options["stochastic_depth"] * index / max(1, depth - 1)
        blocks[f"block_{index}"] = _vit.Block(block, probability)
    blocks["head"] = nn.Sequential(
        OrderedDict(norm=network.encoder.ln, token=_vit.ClassToken(), head=network.heads.head)
    )
    return nn.Sequential(blocks)
