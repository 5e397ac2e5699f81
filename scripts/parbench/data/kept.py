"""Weights that a training cell kept, for cells that predict with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from parbench import files
from parbench.cell import Cell
from parbench.errors import ParbenchError

if TYPE_CHECKING:
    import torch
    from torch import nn

WEIGHTS, DIGEST = "weights.safetensors", "weights.json"


def keep(tensors: dict[str, torch.Tensor], sha256: str, folder: Path) -> None:
    """Write a whole model's ``tensors``, whose digest is ``sha256``, into its cell's folder."""
    from safetensors.torch import save_file

    with files.atomic_path(folder / WEIGHTS) as temporary:
        # The file's own order is another: names begin with a tensor's number.
        named = enumerate(tensors.items())
        save_file({f"{n:05d} {name}": t.cpu().contiguous() for n, (name, t) in named}, temporary)
    files.write_json(folder / DIGEST, {"sha256": sha256})


def agree(cell: Cell, metrics: dict, cells: Path) -> bool:
    """Whether the weights that ``cell`` is to leave are there, and those that its ``metrics`` rest
    on are what its trainer left. ``cells`` is the folder of all cells."""
    if cell.run.keeps_weights and not (cells / cell.id / DIGEST).exists():
        return False
    if cell.trained_by is None:
        return True
    return files.read_json(cells / cell.trained_by / DIGEST)["sha256"] == metrics["weights_sha256"]


def load(model: nn.Module, cell: Cell, data: Path) -> str:
    """Give ``model`` the weights of the cell that trained it; returns their digest.

    Strategies name the same tensors differently: they come by their order. ``data`` is the folder
    of the dataset, results/data/<name>. ParbenchError where they are missing or another model's.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from parbench.measure import metrics_json

    folder = data.absolute().parents[1] / "cells" / cell.trained_by
    path, sha256 = folder / WEIGHTS, files.read_json(folder / DIGEST)["sha256"]
    own = model.state_dict()
    try:
        stored = load_file(path)
    except (OSError, SafetensorError):
        stored = {}
    found = [stored[name] for name in sorted(stored)]
    if [tensor.shape for tensor in found] == [tensor.shape for tensor in own.values()]:
        with torch.no_grad():
            for tensor, value in zip(own.values(), found, strict=True):
                tensor.copy_(value)
    if metrics_json.weights_sha256(own) != sha256:
        raise ParbenchError(
            f"{path}: missing, damaged, or not the weights of cell {cell.trained_by}; delete "
            f"{folder / DIGEST} and run snakemake again"
        )
    return sha256
