"""Fetch, verify and rename one file of published weights, from an entry of config.yaml's
``weights`` to weights.safetensors, with the names of the model's own blocks, and digest.json.

The SHA-256 is checked before a file is opened. PyTorch's pickles are read with ``weights_only``,
which accepts only tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import timm
import torch
import torchvision
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from parbench import files, models
from parbench.cache import print_message
from parbench.data import download, pretrained
from parbench.data.tokens import Vocabulary
from parbench.errors import ParbenchError
from parbench.words import brief

# The id of the padding token in published vocabularies, by kind.
PADDING = {"wordpiece": 0, "bpe": 1}
HEADS = (
    "classifier.weight",
    "classifier.out_proj.weight",
)  # classifiers in published files


@dataclass(frozen=True)
class PublishedNetwork:
    """A library's ``network`` with published weights; ``missing`` names tensors not in the file.

    ``shape`` is what a model's ``build`` takes besides classes and options: an image size or a
    vocabulary. For the input ``sample``, the model must give the same output as ``compute``.
    """

    network: nn.Module
    shape: int | Vocabulary
    sample: torch.Tensor
    compute: Callable[[torch.Tensor], torch.Tensor]
    missing: frozenset[str] = frozenset()


def prepare(name: str, spec: dict, out: Path, digest: Path) -> None:
    """Write the weights ``name``, whose entry is ``spec``, to ``out`` and ``digest``."""
    published = read(spec, download.fetch(spec["urls"], spec["size"], spec["sha256"]))
    with files.atomic_path(out) as temporary:
        save_file(renamed(spec, published), temporary)
        sha256 = files.sha256_file(temporary)
    description = {
        "schema_version": 1,
        "sha256": sha256,
        "source_sha256": spec["sha256"],
        "conversion": pretrained.CONVERSION,
        "network": _called(spec),
        "image_size": spec.get("image_size"),
        "num_classes": classes(published.network),
    }
    files.write_json(digest, description)
    print_message(f"{name}: published weights of {spec['model']} in {out}")


def network(spec: dict) -> nn.Module:
    """Return the library's network, torchvision/<name> or timm/<name>, with the file's names."""
    library, _, name = spec["network"].partition("/")
    return timm.create_model(name) if library == "timm" else torchvision.models.get_model(name)


def read(spec: dict, path: Path) -> PublishedNetwork:
    """Return the network of ``spec`` with the weights of ``path``. Raises ParbenchError if they do
    not fit."""
    try:
        tensors = _tensors(path)
        if models.vocabulary(spec["model"]):
            return _of_texts(spec, tensors)
        theirs = network(spec)
        theirs.load_state_dict(tensors)
    except Exception as error:  # such as an unknown name, a broken pickle, other tensors
        raise ParbenchError(
            f"{path}: not the weights of {_called(spec)} ({brief(str(error), 300)})"
        ) from error
    return of_images(theirs, spec["image_size"])


def _called(spec: dict) -> str:
    """Return the library's name for the network."""
    return spec.get("network") or f"transformers' {spec['model']}"


def of_images(theirs: nn.Module, size: int) -> PublishedNetwork:
    """Return the published network ``theirs``, for images of ``size`` pixels a side."""
    return PublishedNetwork(theirs.eval(), size, torch.randn(1, 3, size, size), theirs)


def _of_texts(spec: dict, tensors: dict[str, torch.Tensor]) -> PublishedNetwork:
    """Return a text network. Transformers translates the names in its older files and draws the
    head that a language model lacks."""
    from transformers import logging

    logging.set_verbosity_error()  # suppress the warning about a missing head
    logging.disable_progress_bar()
    name = spec["model"]
    sizes = [len(value) for key, value in tensors.items() if key.endswith("word_embeddings.weight")]
    heads = [tensors[key] for key in HEADS if key in tensors]
    if not sizes:
        raise ValueError("no tensor is called ...word_embeddings.weight")
    kind = models.vocabulary(name)
    assert kind is not None
    pad = PADDING[kind]
    vocabulary = Vocabulary(size=sizes[0], pad=pad, first=pad, last=pad)
    template = models.load(name).network(
        len(heads[0]) if heads else 2, vocabulary, models.options(name, spec.get("options") or {})
    )
    theirs, info = type(template).from_pretrained(
        None, config=template.config, state_dict=tensors, output_loading_info=True
    )
    sample = torch.randint(pad + 1, sizes[0], (2, 8))
    missing = frozenset(info["missing_keys"])
    return PublishedNetwork(
        theirs.eval(), vocabulary, sample, lambda ids: theirs(ids).logits, missing
    )


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors or PyTorch file by name."""
    try:
        return load_file(path)
    except SafetensorError:
        content = torch.load(path, map_location="cpu", weights_only=True)
    return content.get("model", content)  # some publishers wrap them


def classes(theirs: nn.Module) -> int:
    """Return the number of classes of a network: the rows of its last layer."""
    return len(list(theirs.parameters())[-1])


def renamed(spec: dict, theirs: PublishedNetwork) -> dict[str, torch.Tensor]:
    """Return the tensors of ``theirs`` by the names of the model's blocks, without a head that the
    file lacks. Raises ParbenchError if the two compute different outputs or the file lacks more.
    """
    model, given_options = models.load(spec["model"]), spec.get("options") or {}
    options = models.options(spec["model"], given_options)
    ours = model.build(classes(theirs.network), theirs.shape, options)
    mismatch = (
        f"network {_called(spec)} is not the model {spec['model']} with options {given_options}"
    )
    their_state = theirs.network.state_dict()
    own_state, published = ours.state_dict(), list(their_state.values())
    if [_long(tensor) for tensor in own_state.values()] != [_long(tensor) for tensor in published]:
        raise ParbenchError(f"{mismatch}: its tensors differ in number or shape")
    # Matched by order. Equal shapes do not prove the match right; equal outputs do.
    pairs = zip(own_state.items(), published, strict=True)
    tensors = {name: value.reshape(block.shape).contiguous() for (name, block), value in pairs}
    ours.load_state_dict(tensors)
    with torch.no_grad():
        output, expected = ours.eval()(theirs.sample), theirs.compute(theirs.sample)
    if not torch.allclose(output, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item()):
        raise ParbenchError(f"{mismatch}: with the same weights its output differs")
    missing = [
        name
        for name, their_name in zip(own_state, their_state, strict=True)
        if their_name in theirs.missing
    ]
    if rest := [name for name in missing if not name.startswith("head.")]:
        raise ParbenchError(f"{mismatch}: the file has no {brief(', '.join(rest), 300)}")
    return {name: value for name, value in tensors.items() if name not in missing}


def _long(tensor: torch.Tensor) -> list[int]:
    """Return the shape without dimensions of 1, since a linear layer equals a 1x1 convolution."""
    return [side for side in tensor.shape if side > 1]
