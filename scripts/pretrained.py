"""Published weights that a model starts from: which a study asks for, and how a rank loads them.

``pretrained: true`` of a model in a study takes the entry of config.yaml's ``weights`` that is of
this model with these options. scripts/weights.py has fetched it before.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import files
from errors import ParbenchError

if TYPE_CHECKING:
    from torch import nn

# Raised when scripts/weights.py makes other bytes of the same file: cells are then trained again.
CONVERSION = 1


def chosen(model: dict, options: dict[str, dict], entries: dict[str, dict], where: str) -> dict:
    """The name and SHA-256 of the weights for ``model``, which has a name and all its options.

    ``entries`` is config.yaml's ``weights``; ``options`` are those of the model's file, whose
    defaults an entry leaves out. ParbenchError where there is not exactly one.
    """
    usual = {key: part.get("default") for key, part in options.items()}
    of_model = {key: each for key, each in entries.items() if each["model"] == model["name"]}
    fitting = [
        key for key, each in of_model.items() if usual | each.get("options", {}) == model["options"]
    ]
    if len(fitting) == 1:
        sha256 = entries[fitting[0]]["sha256"]
        return {"weights": fitting[0], "sha256": sha256, "conversion": CONVERSION}
    asked = f"{where}: models.{model['name']}.pretrained"
    if fitting:
        raise ParbenchError(
            f"{asked}: several entries under weights in config.yaml are of this model with these "
            f"options: {', '.join(fitting)}; keep one of them"
        )
    differing = {k: v for k, v in model["options"].items() if v != usual[k]}
    there = ", ".join(
        f"{key} (options {each.get('options', {})})" for key, each in of_model.items()
    )
    raise ParbenchError(
        f"{asked}: config.yaml has no weights of {model['name']} with the options {differing}; "
        f"it has {there or 'none of this model'}. Add an entry under weights, or say false"
    )


def folder(cell: dict, data: Path) -> Path | None:
    """Where the weights of ``cell`` lie: results/weights/<name>, beside results/data/<dataset>.

    None for a model that starts from its seed.
    """
    wanted = cell["model"].get("pretrained")
    return wanted and data.absolute().parent.parent / "weights" / wanted["weights"]


def load(blocks: nn.Sequential, cell: dict, data: Path) -> None:
    """Give ``blocks`` the published weights that ``cell`` asks for, if it does.

    A classifier of other classes keeps the weights that the seed has drawn. ParbenchError where the
    file is another one than the cell's, is damaged or does not fit the model.
    """
    place = folder(cell, data)
    if place is None:
        return
    from safetensors.torch import load_file

    path, described = place / "weights.safetensors", files.read_json(place / "digest.json")
    if described["source_sha256"] != cell["model"]["pretrained"]["sha256"]:
        raise ParbenchError(
            f"{place / 'digest.json'}: weights of the file with SHA-256 "
            f"{described['source_sha256']}, the cell wants "
            f"{cell['model']['pretrained']['sha256']}; run snakemake again, which makes them anew"
        )
    if files.sha256_file(path) != described["sha256"]:
        raise ParbenchError(f"{path} is damaged; delete it and run snakemake again")
    own = blocks.state_dict()
    for name, value in load_file(path).items():
        classes = described["num_classes"]
        if own[name].shape == value.shape:
            own[name].copy_(value)
        elif value.shape[0] != classes or own[name].shape[1:] != value.shape[1:]:
            raise ParbenchError(
                f"cell {cell['id']}: the published weights of {cell['model']['name']} have "
                f"{name} as {list(value.shape)}, the model has {list(own[name].shape)}; they are "
                f"of images of {described['image_size']}x{described['image_size']}: set image_size "
                f"to {described['image_size']}, or pretrained to false"
            )
