"""Fetch, verify and rename one file of published weights: an entry of config.yaml's ``weights`` in,
weights.safetensors and digest.json out, with the names that the model's own blocks have.

The bytes are checked against their SHA-256 before anything opens them. What PyTorch has pickled is
read as tensors alone (``weights_only``).
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dataset
import files
import models
import unbundle
from errors import ParbenchError, run_main


def _of_torchvision(name: str) -> Any:
    import torchvision

    return torchvision.models.get_model(name, weights=None)


def _of_timm(name: str) -> Any:
    import timm

    return timm.create_model(name, pretrained=False)


LIBRARIES: dict[str, Callable[[str], Any]] = {"torchvision": _of_torchvision, "timm": _of_timm}


def network(spec: dict) -> Any:
    """The library's own network, which knows the names that the published file has."""
    library, _, name = spec["network"].partition("/")
    try:
        return LIBRARIES[library](name)
    except (ValueError, RuntimeError) as error:  # what the libraries say of unknown names
        raise ParbenchError(f"network {spec['network']}: {error}") from None


def tensors_of(path: Path) -> dict[str, Any]:
    """Tensors by name of a file of safetensors or of PyTorch. ParbenchError for anything else."""
    import pickle

    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError:
        pass
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        said = str(error).splitlines() or [type(error).__name__]
        raise ParbenchError(
            f"{path}: neither safetensors nor weights of PyTorch ({said[0]})"
        ) from None
    if isinstance(found, dict) and isinstance(found.get("model"), dict):
        found = found["model"]  # as some publishers wrap them
    if not isinstance(found, dict) or not all(torch.is_tensor(each) for each in found.values()):
        raise ParbenchError(f"{path}: holds no tensors by name")
    return found


def renamed(spec: dict, path: Path) -> tuple[dict[str, Any], int]:
    """The tensors of ``path`` by the names of the model's blocks, and how many classes they tell
    apart. ParbenchError where they are not those of the entry's network, or that not the model.
    """
    theirs = network(spec)
    try:
        theirs.load_state_dict(tensors_of(path))
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise ParbenchError(
            f"{path}: not the weights of {spec['network']}: {' '.join(lines[1:2] or lines)}"
        ) from None
    classes = list(theirs.parameters())[-1].shape[0]  # rows of the last layer
    model = models.load(spec["model"])
    options = {key: part["default"] for key, part in model.OPTIONS.items()} | spec.get(
        "options", {}
    )
    ours = model.build(classes, spec["image_size"], options).state_dict()
    given = theirs.state_dict()
    # tests/test_models.py shows for every model that the order is the same.
    pairs = list(zip(ours.items(), given.items(), strict=False))
    different = [(a, b) for (a, own), (b, other) in pairs if _long(own) != _long(other)]
    if len(ours) != len(given) or different:
        first = different[0] if different else ("", "")
        raise ParbenchError(
            f"network {spec['network']} is not the model {spec['model']} with options "
            f"{spec.get('options', {})}: {len(ours)} tensors here, {len(given)} there"
            + (f"; {first[0]} differs from {first[1]}" if different else "")
        )
    return {a: other.reshape(own.shape).contiguous() for (a, own), (_, other) in pairs}, classes


def _long(tensor: Any) -> list[int]:
    """Its shape without sides of one: a linear layer is a convolution of one pixel."""
    return [side for side in tensor.shape if side > 1]


def prepare(name: str, spec: dict, out: Path, digest: Path) -> None:
    """Bring the weights ``name`` to ``out`` and ``digest``, unless they are there already."""
    from safetensors.torch import save_file

    with dataset.locked(out.parent / ".lock", f"prepares {name}"):
        if _is_there(spec, out, digest):
            dataset.say(f"{name}: already there ({out})")
            return
        if (bundled := unbundle.weights(name, spec)) is not None:
            _take(bundled, spec, out, digest)
            return
        path = dataset.fetch(spec["urls"], spec["size"], spec["sha256"])
        tensors, classes = renamed(spec, path)
        dataset.demand_space(out.parent, 2 * spec["size"], "make room there")
        with files.atomic_path(out) as temporary:
            save_file(tensors, temporary)
            sha256 = files.sha256_file(temporary)
        described = {
            "schema_version": 1,
            "sha256": sha256,
            "source": spec["urls"][0],
            "source_sha256": spec["sha256"],
            "network": spec["network"],
            "image_size": spec["image_size"],
            "num_classes": classes,
        }
        files.write_json(digest, described)
        dataset.say(f"{name}: {len(tensors)} tensors in {out}")


def _is_there(spec: dict, out: Path, digest: Path) -> bool:
    if not (out.is_file() and digest.is_file()):
        return False
    try:
        found = files.read_json(digest)
        return (found["source_sha256"], found["sha256"]) == (
            spec["sha256"],
            files.sha256_file(out),
        )
    except (ParbenchError, KeyError, TypeError):
        return False


def _take(folder: Path, spec: dict, out: Path, digest: Path) -> None:
    """The weights as a bundle brought them."""
    weights, described = folder / out.name, folder / digest.name
    if not _is_there(spec, weights, described):
        raise ParbenchError(f"{weights} is missing or damaged; {unbundle.AGAIN}")
    dataset.demand_space(out.parent, weights.stat().st_size, "make room there")
    with files.atomic_path(out) as temporary:
        shutil.copyfile(weights, temporary)
    files.write_json(digest, files.read_json(described))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True, help="its key under weights in config.yaml")
    parser.add_argument("--weights", type=Path, required=True, help="JSON file of all entries")
    parser.add_argument("--out", required=True, type=Path, help="weights.safetensors to write")
    parser.add_argument("--digest", required=True, type=Path, help="digest.json to write")
    arguments = parser.parse_args()
    spec = files.read_json(arguments.weights)[arguments.name]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave as on any error
    prepare(arguments.name, spec, arguments.out, arguments.digest)


if __name__ == "__main__":
    run_main(main)
