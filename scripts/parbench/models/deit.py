"""DeiT from timm (Touvron et al. 2021); by default its deit_tiny with patches of 16.

deit_small has ``embed_dim: 384, num_heads: 6``, deit_base 768 and 12. ``distilled`` adds the
distillation token and head; without a teacher, the mean of both heads learns from the labels.
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
    "patch_size": number("side of a patch, in pixels", 16, 1024),
    "embed_dim": number("width of a token", 192, 16384),
    "depth": number("transformer blocks", 12, 1000),
    "num_heads": number("attention heads of a block", 3, 1024),
    "dropout": share("dropout of embeddings and branches", 0),
    "stochastic_depth": share(
        "probability that the last block's branches are skipped; rising from 0 at the first", 0.1
    ),
    "distilled": {
        "description": "whether to add the distillation token and head",
        "type": "boolean",
        "default": False,
    },
}
SMALL = {"patch_size": 8, "embed_dim": 12, "depth": 4, "num_heads": 2, "distilled": True}

cuts = partial(_cuts.transformer, "deit", "embed_dim")


def build(num_classes: int, image_size: int, options: dict) -> nn.Sequential:
    """Build the model: [B, 3, S, S] float -> [B, num_classes] logits.

    Raises ParbenchError if S is not a multiple of the patch size.
    """
    _cuts.check_patches("deit", image_size, options)
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import VisionTransformer
    from torch import nn

    from parbench.models import _deit

    network: Any = (VisionTransformerDistilled if options["distilled"] else VisionTransformer)(
        img_size=image_size,
        patch_size=options["patch_size"],
        num_classes=num_classes,
        embed_dim=options["embed_dim"],
        depth=options["depth"],
        num_heads=options["num_heads"],
        proj_drop_rate=options["dropout"],
        pos_drop_rate=options["dropout"],
        drop_path_rate=options["stochastic_depth"],
    )
    blocks: OrderedDict[str, nn.Module] = OrderedDict(embedding=_deit.Embedding(network))
    for index, block in enumerate(network.blocks):
        blocks[f"block_{index}"] = block
    blocks["head"] = _deit.Head(network)
    return nn.Sequential(blocks)
