"""Weights that a training cell keeps for cells that predict with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from parbench import files
from parbench.cell import Cell, Pair
from parbench.errors import ParbenchError

if TYPE_CHECKING:
    import torch
    from torch import nn

WEIGHTS, DIGEST = "weights.safetensors", "weights.json"


def keep(tensors: dict[str, torch.Tensor], sha256: str, folder: Path) -> None:
    """Write a whole model's ``tensors``, with the digest ``sha256``, into its cell's ``folder``."""
    from safetensors.torch import save_file

    with files.atomic_path(folder / WEIGHTS) as temporary:
        # safetensors does not keep the order: names begin with the tensor's number.
        numbered = enumerate(tensors.items())
        save_file({f"{n:05d} {name}": t.cpu().contiguous() for n, (name, t) in numbered}, temporary)
    files.write_json(folder / DIGEST, {"sha256": sha256})


def why_missing(cell: Cell | Pair, cells: Path) -> str | None:
    """Return a message if other cells need the weights of ``cell`` but it did not keep them; else
    None.

    ``cells``: the folder of all cells.
    """
    path = cells / cell.id / DIGEST
    if isinstance(cell, Pair) or not cell.run.keeps_weights or path.exists():
        return None
    return f"another cell predicts with its weights, but they were not kept ({path})"


def load(model: nn.Module, cell: Cell, data: Path) -> str:
    """Load the weights that ``cell.trained_by`` trained into ``model``; return their digest.

    Tensors are matched by order, since strategies name them differently. ``data`` is the dataset's
    folder, results/data/<name>. Raises ParbenchError if they are missing or another model's.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from parbench.measure import metrics_json

    assert cell.trained_by is not None
    folder = data.absolute().parents[1] / "cells" / cell.trained_by
    path, sha256 = folder / WEIGHTS, files.read_record(folder / DIGEST, "sha256")["sha256"]
    state = model.state_dict()
    try:
        stored = load_file(path)
    except (OSError, SafetensorError):
        stored = {}
    values = [stored[name] for name in sorted(stored)]
    if [tensor.shape for tensor in values] == [tensor.shape for tensor in state.values()]:
        with torch.no_grad():
            for tensor, value in zip(state.values(), values, strict=True):
                tensor.copy_(value)
    if metrics_json.weights_sha256(state) != sha256:
        raise ParbenchError(
            f"{path}: missing, damaged, or not the weights of cell {cell.trained_by}; delete "
            f"{folder / DIGEST} and run snakemake again"
        )
    return sha256
