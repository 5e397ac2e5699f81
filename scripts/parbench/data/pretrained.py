"""Load the published weights that a model starts from.

Planning chooses them among config.yaml's ``weights``; `parbench weights` fetches them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from parbench import files
from parbench.cell import Cell
from parbench.errors import ParbenchError

if TYPE_CHECKING:
    from torch import nn

# Increase it when `parbench weights` makes other bytes from the same file; cells then train again.
CONVERSION = 1
WEIGHTS, DIGEST = "weights.safetensors", "digest.json"


def folder(cell: Cell, data: Path) -> Path | None:
    """Return the folder of the weights of ``cell``: results/weights/<name>, for ``data``
    results/data/<dataset>. None for a model that is initialized from its seed.
    """
    published = cell.model.pretrained
    return published and data.absolute().parent.parent / "weights" / published.weights


def load(blocks: nn.Sequential, cell: Cell, data: Path, verify: bool = True) -> None:
    """Load the published weights that ``cell`` asks for, if any, into ``blocks``.

    A classifier with another number of classes, or a head that the published file lacks, keeps its
    seeded weights. ``verify``: check the file's digest; once per node is enough. Raises
    ParbenchError if the file is not the cell's, is damaged or does not fit the model.
    """
    published, weights_folder = cell.model.pretrained, folder(cell, data)
    if published is None or weights_folder is None:
        return
    from safetensors.torch import load_file

    path, digest = weights_folder / WEIGHTS, files.read_json(weights_folder / DIGEST)
    expected = {"source_sha256": published.sha256, "conversion": published.conversion}
    if (
        not expected.items() <= digest.items()
        or not path.is_file()
        or (verify and files.sha256_file(path) != digest["sha256"])
    ):
        raise ParbenchError(
            f"{path}: missing, damaged, or not the weights of cell {cell.id}; delete "
            f"{weights_folder} and run snakemake again"
        )
    size = digest["image_size"]
    remedy = f"they were trained on images of {size}x{size}: set image_size to {size}"
    if size is None:
        remedy = "choose a dataset with the vocabulary that they were trained with"
    state = blocks.state_dict()
    for name, value in load_file(path).items():
        tensor = state[name]
        if tensor.shape == value.shape:
            tensor.copy_(value)
        elif value.shape != (digest["num_classes"], *tensor.shape[1:]):
            raise ParbenchError(
                f"cell {cell.id}: the published weights of {cell.model.name} have {name} as "
                f"{list(value.shape)}, the model has {list(tensor.shape)}; {remedy}, or set "
                "pretrained to false"
            )
