"""Fetch, verify and rename one file of published weights: an entry of config.yaml's ``weights`` in,
weights.safetensors and digest.json out, with the names that the model's own blocks have.

The bytes are checked against their SHA-256 before anything opens them. What PyTorch has pickled is
read as tensors alone (``weights_only``).
"""

from __future__ import annotations

import argparse
import signal
import sys
import textwrap
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from parbench import files, models
from parbench.data import download, pretrained
from parbench.errors import ParbenchError
from parbench.printable import printable


def network(spec: dict) -> nn.Module:
    """The library's own network, which knows the names that the published file has.

    ``network`` is torchvision/<name> or timm/<name>, as config.yaml's schema has it.
    """
    library, _, name = spec["network"].partition("/")
    try:
        if library == "timm":
            import timm

            return timm.create_model(name, pretrained=False)
        import torchvision

        # For others than classifiers the library would fetch backbones, unchecked.
        if name not in torchvision.models.list_models(module=torchvision.models):
            raise ValueError("torchvision has no classifier of that name")
        return torchvision.models.get_model(name, weights=None)
    except (ValueError, RuntimeError) as error:  # what they say of unknown names
        raise ParbenchError(f"network {spec['network']}: {error}") from None


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    """Tensors by name of a file of safetensors or of PyTorch. ParbenchError for anything else."""
    try:
        return load_file(path)
    except SafetensorError:
        pass
    # Before, a file that is made for it runs code even so (CVE-2025-32434).
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
        raise ParbenchError(
            f"{path}: no safetensors, and PyTorch {torch.__version__} does not read its own files "
            "safely; make the weights with the stack current, whose PyTorch does, or name an "
            "address of safetensors"
        )
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a broken pickle ends in any of them
        said = str(error).splitlines() or [type(error).__name__]
        raise ParbenchError(
            f"{path}: neither safetensors nor weights of PyTorch ({_brief(said[0])})"
        ) from None
    if isinstance(found, dict) and isinstance(found.get("model"), dict):
        found = found["model"]  # as some publishers wrap them
    if not isinstance(found, dict) or not all(torch.is_tensor(each) for each in found.values()):
        raise ParbenchError(f"{path}: holds no tensors by name")
    return found


def _brief(text: str) -> str:
    return textwrap.shorten(printable(text), 80, placeholder="...")


def read(spec: dict, path: Path) -> nn.Module:
    """The network of ``spec`` with the weights of ``path``; ParbenchError where they do not fit."""
    theirs = network(spec)
    try:
        theirs.load_state_dict(tensors_of(path))
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise ParbenchError(
            f"{path}: not the weights of {spec['network']}: {_brief(' '.join(lines[1:2] or lines))}"
        ) from None
    return theirs


def renamed(spec: dict, theirs: nn.Module) -> tuple[dict[str, torch.Tensor], int]:
    """The tensors of ``theirs`` by the names of the model's blocks, and how many classes they tell
    apart. ParbenchError where the two do not compute the same.
    """
    classes = list(theirs.parameters())[-1].shape[0]  # rows of the last layer
    model, given = models.load(spec["model"]), spec.get("options", {})
    options = {key: part["default"] for key, part in model.OPTIONS.items()} | given
    ours = model.build(classes, spec["image_size"], options)
    other = f"network {spec['network']} is not the model {spec['model']} with options {given}"
    pairs = list(zip(ours.state_dict().items(), theirs.state_dict().items(), strict=False))
    different = [f"{a}, there {b}" for (a, x), (b, y) in pairs if _long(x) != _long(y)]
    if len(ours.state_dict()) != len(theirs.state_dict()) or different:
        raise ParbenchError(
            f"{other}: {len(ours.state_dict())} tensors here, {len(theirs.state_dict())} there"
            + (f"; the first that differs is {different[0]}" if different else "")
        )
    # Named by their order, which the shapes alone do not prove.
    tensors = {a: value.reshape(own.shape).contiguous() for (a, own), (_, value) in pairs}
    ours.load_state_dict(tensors)
    images = torch.randn(1, 3, spec["image_size"], spec["image_size"])
    with torch.no_grad():
        found, expected = ours.eval()(images), theirs.eval()(images)
    if not torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item()):
        raise ParbenchError(f"{other}: with the same weights it computes something else")
    return tensors, classes


def _long(tensor: torch.Tensor) -> list[int]:
    """Its shape without sides of one: a linear layer is a convolution of one pixel."""
    return [side for side in tensor.shape if side > 1]


def prepare(name: str, spec: dict, out: Path, digest: Path) -> None:
    """Bring the weights ``name``, whose entry is ``spec``, to ``out`` and ``digest``."""
    try:
        _make(spec, out, digest)
    except (OSError, SafetensorError) as error:
        where = getattr(error, "filename", None) or out
        raise ParbenchError(f"{where}: {getattr(error, 'strerror', None) or error}") from error
    except MemoryError:
        raise ParbenchError(f"{name}: this machine has too little memory for it") from None
    download.say(f"{name}: published weights of {spec['model']} in {out}")


def _make(spec: dict, out: Path, digest: Path) -> None:
    path = download.fetch(spec["urls"], spec["size"], spec["sha256"])
    tensors, classes = renamed(spec, read(spec, path))
    with files.atomic_path(out) as temporary:
        save_file(tensors, temporary)
        sha256 = files.sha256_file(temporary)
    described = {
        "schema_version": 1,
        "sha256": sha256,
        "source_sha256": spec["sha256"],
        "conversion": pretrained.CONVERSION,
        "network": spec["network"],
        "image_size": spec["image_size"],
        "num_classes": classes,
    }
    files.write_json(digest, described)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True, help="its key under weights in config.yaml")
    parser.add_argument("--weights", type=Path, required=True, help="JSON file of all entries")
    parser.add_argument("--out", required=True, type=Path, help="weights.safetensors to write")
    parser.add_argument("--digest", required=True, type=Path, help="digest.json to write")
    arguments = parser.parse_args()
    entries = files.read_json(arguments.weights)
    if arguments.name not in entries:
        raise ParbenchError(
            f"--name {arguments.name}: {arguments.weights} has {', '.join(entries)}"
        )
    spec = entries[arguments.name]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave as on any error
    prepare(arguments.name, spec, arguments.out, arguments.digest)
