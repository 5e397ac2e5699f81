"""Published weights that a model starts from, as a rank loads them.

scripts/cells.py chooses them among config.yaml's ``weights``, scripts/weights.py has fetched them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from parbench import files
from parbench.cell import Cell
from parbench.errors import ParbenchError

if TYPE_CHECKING:
    import torch
    from torch import nn

# Raised when scripts/weights.py makes other bytes of the same file: cells are then trained again.
CONVERSION = 1
WEIGHTS, DIGEST = "weights.safetensors", "digest.json"


def folder(cell: Cell, data: Path) -> Path | None:
    """Where the weights of ``cell`` lie: results/weights/<name>, beside results/data/<dataset>.

    None for a model that starts from its seed.
    """
    wanted = cell.model.pretrained
    return wanted and data.absolute().parent.parent / "weights" / wanted.weights


def load(blocks: nn.Sequential, cell: Cell, data: Path, verify: bool = True) -> None:
    """Give ``blocks`` the published weights that ``cell`` asks for, if it does.

    A classifier of other classes keeps the weights that the seed has drawn. ``verify``: whether the
    file's digest is checked, which once a node is enough. ParbenchError where the file is another
    one than the cell's, is damaged or does not fit the model.
    """
    place = folder(cell, data)
    if place is None:
        return
    from safetensors import SafetensorError, safe_open

    described = _described(place, cell, verify)
    own = blocks.state_dict()
    try:
        with safe_open(place / WEIGHTS, "pt") as stored:
            names = set(stored.keys())
            if names != set(own):
                other = f"not what the model {cell.model.name} consists of now"
                raise ParbenchError(_broken(place, f"{other}, such as {min(names ^ set(own))}"))
            for name, tensor in own.items():
                _fill(tensor, stored.get_tensor(name), name, cell, described)
    except SafetensorError as error:
        raise ParbenchError(_broken(place, str(error))) from None


def _described(place: Path, cell: Cell, verify: bool) -> dict:
    """digest.json, which belongs to the file beside it and to what ``cell`` wants."""
    found = files.read_json(place / DIGEST)
    wanted, path = cell.model.pretrained, place / WEIGHTS
    keys = {"sha256", "source_sha256", "conversion", "num_classes", "image_size"}
    if not isinstance(found, dict) or not keys <= set(found):
        raise ParbenchError(_broken(place, f"{DIGEST} describes no weights"))
    told = {"sha256": found["source_sha256"], "conversion": found["conversion"]}
    if any(getattr(wanted, key) != value for key, value in told.items()):
        raise ParbenchError(_broken(place, f"made of {told}, the cell wants {wanted}"))
    if not path.is_file() or (verify and files.sha256_file(path) != found["sha256"]):
        raise ParbenchError(_broken(place, f"{WEIGHTS} is missing or damaged"))
    return found


def _broken(place: Path, reason: str) -> str:
    return f"{place}: {reason}; delete that folder and run snakemake again"


def _fill(
    tensor: torch.Tensor, value: torch.Tensor, name: str, cell: Cell, described: dict
) -> None:
    """``tensor`` gets ``value``, but for the classifier of other classes."""
    if tensor.shape == value.shape:
        tensor.copy_(value)
    elif value.shape[:1] != (described["num_classes"],) or tensor.shape[1:] != value.shape[1:]:
        size = described["image_size"]
        raise ParbenchError(
            f"cell {cell.id}: the published weights of {cell.model.name} have {name} as "
            f"{list(value.shape)}, the model has {list(tensor.shape)}; they are of images of "
            f"{size}x{size}: set image_size to {size}, or pretrained to false"
        )
