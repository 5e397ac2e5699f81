"""Fetch, verify and rename one file of published weights: an entry of config.yaml's ``weights`` in,
weights.safetensors and digest.json out, with the names that the model's own blocks have.

The bytes are checked against their SHA-256 before anything opens them. What PyTorch has pickled is
read as tensors alone (``weights_only``).
"""

from __future__ import annotations

from pathlib import Path

import timm
import torch
import torchvision
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from parbench import files, models
from parbench.cache import say
from parbench.data import download, pretrained
from parbench.errors import ParbenchError
from parbench.words import brief


def prepare(name: str, spec: dict, out: Path, digest: Path) -> None:
    """Bring the weights ``name``, whose entry is ``spec``, to ``out`` and ``digest``."""
    theirs = read(spec, download.fetch(spec["urls"], spec["size"], spec["sha256"]))
    with files.atomic_path(out) as temporary:
        save_file(renamed(spec, theirs), temporary)
        sha256 = files.sha256_file(temporary)
    described = {
        "schema_version": 1,
        "sha256": sha256,
        "source_sha256": spec["sha256"],
        "conversion": pretrained.CONVERSION,
        "network": spec["network"],
        "image_size": spec["image_size"],
        "num_classes": classes(theirs),
    }
    files.write_json(digest, described)
    say(f"{name}: published weights of {spec['model']} in {out}")


def network(spec: dict) -> nn.Module:
    """The library's own network, torchvision/<name> or timm/<name>, which has the file's names."""
    library, _, name = spec["network"].partition("/")
    return timm.create_model(name) if library == "timm" else torchvision.models.get_model(name)


def read(spec: dict, path: Path) -> nn.Module:
    """The network of ``spec`` with the weights of ``path``; ParbenchError where they do not fit."""
    try:
        theirs = network(spec)
        theirs.load_state_dict(_tensors(path))
    except Exception as error:  # an unknown name, a broken pickle, other tensors
        raise ParbenchError(
            f"{path}: not the weights of {spec['network']} ({brief(str(error), 300)})"
        ) from error
    return theirs


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    """Tensors by name of a file of safetensors or of PyTorch."""
    try:
        return load_file(path)
    except SafetensorError:
        found = torch.load(path, map_location="cpu", weights_only=True)
    return found.get("model", found)  # as some publishers wrap them


def classes(theirs: nn.Module) -> int:
    """How many classes a network tells apart: the rows of its last layer."""
    return len(list(theirs.parameters())[-1])


def renamed(spec: dict, theirs: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors of ``theirs`` by the names of the model's blocks. ParbenchError where the two do
    not compute the same.
    """
    model, given = models.load(spec["model"]), spec.get("options", {})
    options = models.options(spec["model"], given)
    ours = model.build(classes(theirs), spec["image_size"], options)
    other = f"network {spec['network']} is not the model {spec['model']} with options {given}"
    own, published = ours.state_dict(), list(theirs.state_dict().values())
    if [_long(each) for each in own.values()] != [_long(each) for each in published]:
        raise ParbenchError(f"{other}: its tensors are others in number or shape")
    # Named by their order, which the shapes alone do not prove.
    pairs = zip(own.items(), published, strict=True)
    tensors = {name: value.reshape(block.shape).contiguous() for (name, block), value in pairs}
    ours.load_state_dict(tensors)
    images = torch.randn(1, 3, spec["image_size"], spec["image_size"])
    with torch.no_grad():
        found, expected = ours.eval()(images), theirs.eval()(images)
    if not torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item()):
        raise ParbenchError(f"{other}: with the same weights it computes something else")
    return tensors


def _long(tensor: torch.Tensor) -> list[int]:
    """Its shape without sides of one: a linear layer is a convolution of one pixel."""
    return [side for side in tensor.shape if side > 1]
