"""Cut models into stages, and check that images divide into patches."""

from __future__ import annotations

from parbench.errors import ParbenchError


def stated(model: str, cuts: dict[int, list[str]], stages: int, options: dict) -> list[str]:
    """Return the ``cuts`` that a model file lists for ``stages``, whatever its ``options``.

    Raises ParbenchError if it lists none.
    """
    if stages not in cuts:
        numbers = ", ".join(str(number) for number in sorted(cuts))
        raise ParbenchError(
            f"scripts/parbench/models/{model}.py defines cuts for {numbers} stages, not for "
            f"{stages}; choose one of these, or add the cut there"
        )
    return cuts[stages]


def names(part: str, depths: list[int]) -> list[str]:
    """Return the block names ``<part><number>_<index>`` of a network with ``depths`` blocks in its
    parts 1, 2, ...
    """
    return [
        f"{part}{number}_{index}"
        for number, depth in enumerate(depths, 1)
        for index in range(depth)
    ]


def layers(model: str, part: str, kind: str, stages: int, options: dict) -> list[str]:
    """Return ``even`` cuts of a network with ``depths``, whose blocks are named by ``names``.

    Every block costs about the same, since pixels are quartered where the width doubles. Raises
    ParbenchError as ``even`` does.
    """
    name = f"{model} with depths {options['depths']}"
    return even(name, kind, names(part, options["depths"]), stages)


def even(model: str, kind: str, blocks: list[str], stages: int) -> list[str]:
    """Return cuts into stages of equally many ``blocks``, which all cost about the same.

    Raises ParbenchError, which calls blocks ``kind``, if there are fewer blocks than stages.
    """
    if stages > len(blocks):
        raise ParbenchError(
            f"{model} has {len(blocks)} {kind} and cannot be cut into {stages} stages; lower the "
            "sum of the balance or add blocks"
        )
    return [blocks[round(index * len(blocks) / stages)] for index in range(1, stages)]


def transformer(model: str, width: str, stages: int, options: dict) -> list[str]:
    """Return ``even`` cuts of a transformer; ``width`` names the option that its heads divide.

    Raises ParbenchError also if num_heads does not divide it.
    """
    if options[width] % options["num_heads"]:
        raise ParbenchError(
            f"model {model}: {width} {options[width]} is not divisible by num_heads "
            f"{options['num_heads']}; choose a divisor"
        )
    blocks = [f"block_{index}" for index in range(options["depth"])]
    return even(f"{model} with depth {options['depth']}", "transformer blocks", blocks, stages)


def check_patches(model: str, image_size: int, options: dict) -> None:
    """Raise ParbenchError unless image_size is a multiple of patch_size."""
    if image_size % options["patch_size"]:
        raise ParbenchError(
            f"model {model}: image_size {image_size} is not a multiple of patch_size "
            f"{options['patch_size']}; choose one that is"
        )
