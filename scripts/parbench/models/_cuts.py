"""Where models are cut into stages, and images into patches."""

from __future__ import annotations

from parbench.errors import ParbenchError


def stated(model: str, cuts: dict[int, list[str]], stages: int, options: dict) -> list[str]:
    """The ``cuts`` that a model file states for ``stages``, whatever its ``options`` are.

    ParbenchError when it states none.
    """
    if stages not in cuts:
        numbers = ", ".join(str(number) for number in sorted(cuts))
        raise ParbenchError(
            f"scripts/parbench/models/{model}.py states cuts for {numbers} stages, not for "
            f"{stages}; choose one of these, or add the cut there"
        )
    return cuts[stages]


def names(part: str, depths: list[int]) -> list[str]:
    """Names of the blocks of a network that has ``depths`` of them in its parts 1, 2, ...: the
    part and the index within it.
    """
    return [
        f"{part}{number}_{index}"
        for number, depth in enumerate(depths, 1)
        for index in range(depth)
    ]


def layers(model: str, part: str, kind: str, stages: int, options: dict) -> list[str]:
    """``even`` cuts of a network with ``depths``, whose blocks are named by ``names``.

    Every block costs about the same: where the width doubles, the pixels are a quarter.
    """
    name = f"{model} with depths {options['depths']}"
    return even(name, kind, names(part, options["depths"]), stages)


def even(model: str, kind: str, blocks: list[str], stages: int) -> list[str]:
    """Cuts that give each stage as many of the ``blocks``, which all cost about the same.

    ParbenchError when there are fewer blocks, of a ``kind``, than stages.
    """
    if stages > len(blocks):
        raise ParbenchError(
            f"{model} has {len(blocks)} {kind} and cannot be cut into {stages} stages; lower the "
            "sum of the balance or add blocks"
        )
    return [blocks[round(index * len(blocks) / stages)] for index in range(1, stages)]


def transformer(model: str, width: str, stages: int, options: dict) -> list[str]:
    """``even`` cuts of a Vision Transformer; ``width`` names the option that its heads divide.

    ParbenchError also where they do not.
    """
    if options[width] % options["num_heads"]:
        raise ParbenchError(
            f"model {model}: {width} {options[width]} is not divisible by num_heads "
            f"{options['num_heads']}; choose a divisor"
        )
    blocks = [f"block_{index}" for index in range(options["depth"])]
    return even(f"{model} with depth {options['depth']}", "transformer blocks", blocks, stages)


def check_patches(model: str, image_size: int, options: dict) -> None:
    """ParbenchError where an image is not a whole number of patches."""
    if image_size % options["patch_size"]:
        raise ParbenchError(
            f"model {model}: image_size {image_size} is no multiple of patch_size "
            f"{options['patch_size']}; choose one that is"
        )
