"""Swin Transformer from torchvision (Liu et al. 2021); by default its swin_t."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from parbench.errors import ParbenchError
from parbench.models import _cuts
from parbench.models._options import number, numbers, share

if TYPE_CHECKING:
    from torch import nn

OPTIONS: dict[str, dict] = {
    "patch_size": number("side of a patch, in pixels", 4, 1024),
    "embed_dim": number("width of the first stage; it doubles at each patch merging", 96, 16384),
    "depths": numbers("transformer blocks of each resolution", 1000, [2, 2, 6, 2], 1, 16),
    "num_heads": numbers("attention heads of each resolution", 1024, [3, 6, 12, 24], 1, 16),
    "window_size": number("side of an attention window, in patches", 7, 1024),
    "stochastic_depth": share(
        "probability that the last block is skipped; rising from 0 at the first", 0.2
    ),
}
SMALL = {"embed_dim": 12, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4}


def cuts(stages: int, options: dict) -> list[str]:
    """Return the names of the blocks that begin the 2nd, 3rd, ... stage.

    Raises ParbenchError if there are fewer blocks than stages or options contradict each other.
    """
    depths, heads = options["depths"], options["num_heads"]
    if len(depths) != len(heads):
        raise ParbenchError(
            f"model swin: depths {depths} and num_heads {heads} have different lengths; "
            "give one number of heads for each depth"
        )
    if any((options["embed_dim"] * 2**stage) % count for stage, count in enumerate(heads)):
        raise ParbenchError(
            f"model swin: embed_dim {options['embed_dim']} (doubling each stage) is not divisible "
            f"by num_heads {heads}; choose divisors"
        )
    return _cuts.layers("swin", "stage", "transformer blocks", stages, options)


def build(num_classes: int, image_size: int, options: dict) -> nn.Sequential:
    """Build the model: [B, 3, S, S] float -> [B, num_classes] logits."""
    from torch import nn
    from torchvision.models.swin_transformer import SwinTransformer

    model: Any = SwinTransformer(
        patch_size=[options["patch_size"]] * 2,
        embed_dim=options["embed_dim"],
        depths=options["depths"],
        num_heads=options["num_heads"],
        window_size=[options["window_size"]] * 2,
        stochastic_depth_prob=options["stochastic_depth"],
        num_classes=num_classes,
    )
    # torchvision keeps [embedding, blocks, merging, blocks, ...] in `features`.
    blocks: OrderedDict[str, nn.Module] = OrderedDict(embedding=model.features[0])
    for stage in range(1, len(options["depths"]) + 1):
        if stage > 1:
            blocks[f"merging{stage - 1}"] = model.features[2 * stage - 2]
        for index, block in enumerate(model.features[2 * stage - 1]):
            blocks[f"stage{stage}_{index}"] = block
    blocks["head"] = nn.Sequential(
        OrderedDict(
            norm=model.norm,
            permute=model.permute,
            avgpool=model.avgpool,
            flatten=model.flatten,
            head=model.head,
        )
    )
    return nn.Sequential(blocks)
