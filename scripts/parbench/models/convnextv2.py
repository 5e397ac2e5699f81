"""ConvNeXt V2 from timm (Woo et al. 2023); by default its convnextv2_tiny.

convnextv2_nano has ``depths: [2, 2, 8, 2]`` and ``dims: [80, 160, 320, 640]``.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

from parbench.models import _cuts
from parbench.models._options import number, numbers, share

if TYPE_CHECKING:
    from torch import nn

OPTIONS: dict[str, dict] = {
    "patch_size": number("side of a patch of the stem, in pixels", 4, 1024),
    "depths": numbers("blocks of each resolution", 1000, [3, 3, 9, 3]),
    "dims": numbers("width of each resolution", 65536, [96, 192, 384, 768]),
    "stochastic_depth": share(
        "probability that the last block is skipped; rising from 0 at the first", 0
    ),
}
SMALL = {"depths": [1, 1, 2, 1], "dims": [8, 16, 16, 16], "patch_size": 2}

cuts = partial(_cuts.layers, "convnextv2", "stage", "blocks")


def build(num_classes: int, image_size: int, options: dict) -> nn.Sequential:
    """Build the model: [B, 3, S, S] float, S at least 8 patches -> [B, num_classes] logits."""
    from timm.models.convnext import ConvNeXt
    from torch import nn

    network: Any = ConvNeXt(
        num_classes=num_classes,
        patch_size=options["patch_size"],
        depths=tuple(options["depths"]),
        dims=tuple(options["dims"]),
        drop_path_rate=options["stochastic_depth"],
        use_grn=True,  # added in V2
        ls_init_value=None,  # removed in V2
    )
    blocks: OrderedDict[str, nn.Module] = OrderedDict(stem=network.stem)
    for resolution, stage in enumerate(network.stages, 1):
        if resolution > 1:
            blocks[f"downsample{resolution}"] = stage.downsample
        for index, block in enumerate(stage.blocks):
            blocks[f"stage{resolution}_{index}"] = block
    blocks["head"] = network.head
    return nn.Sequential(blocks)
