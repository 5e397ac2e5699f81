"""Models, one file each, loaded by name.

A model file defines

- ``OPTIONS``: a JSON schema (with a default) for each option that a study may set; an `implied`
  option may be missing from what ``build`` gets and then has its default,
- ``SMALL``: options of a small version, for `parbench certify`,
- ``cuts(stages, options)``: the names of the blocks that begin the 2nd, 3rd, ... of ``stages``
  balanced stages; raises ParbenchError if the model cannot be cut into that many,
- ``build(num_classes, image_size, options)``: a plain single-device ``nn.Sequential`` of named
  blocks, unaware of parallelism, with one tensor passing between blocks.

The file of a text model also defines ``VOCABULARY``, its tokenizer: wordpiece or bpe. Its ``build``
takes a ``Vocabulary`` (data/tokens.py) instead of the image size.

torch is imported inside ``build`` only: the workflow reads options and cuts without it.

A name with a slash, such as torchvision/resnet34, belongs to a module in libraries/, which provides
networks from elsewhere. Such a network may also define ``problem(image_size, options)``, which
returns why it cannot train on images of that size, or None, and ``SMALL_SIZE``, the size of images
for `parbench certify`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from parbench.cell import Options, OptionSchema


def names() -> list[str]:
    """Return the names of all models that have a file in this folder."""
    return _files("")


def library(name: str) -> ModuleType | None:
    """Return the module of libraries/ that provides the model ``name``; None if none does."""
    origin, found, _ = name.partition("/")
    known = found and origin in _files("libraries")
    return importlib.import_module(module(name)) if known else None


def exists(name: str) -> bool:
    """Return whether there is a model of this name."""
    origin = library(name)
    return name in names() if origin is None else name.partition("/")[2] in origin.names()


def module(name: str) -> str:
    """Return the full name of the module that defines the model ``name``."""
    origin, found, _ = name.partition("/")
    return f"parbench.models.libraries.{origin}" if found else f"parbench.models.{name}"


@functools.cache
def load(name: str) -> Any:
    """Return what defines the model ``name``: its module, or a Network of libraries/."""
    found = importlib.import_module(module(name))
    return found.Network(name.partition("/")[2]) if "/" in name else found


def vocabulary(name: str) -> str | None:
    """Return the tokenizer of the model ``name``; None for an image model."""
    return getattr(load(name), "VOCABULARY", None)


def options(name: str, given: Options) -> Options:
    """Return all options of the model ``name``: those ``given``, defaults for the others."""
    return {key: schema["default"] for key, schema in load(name).OPTIONS.items()} | given


def stated_options(name: str, options: Options) -> Options:
    """Return ``options`` of the model ``name``, leaving out implied ones at their defaults."""
    return without_implied(load(name).OPTIONS, options)


def without_implied(schemas: Mapping[str, OptionSchema], options: Options) -> Options:
    """Return ``options``, which ``schemas`` describe, leaving out implied ones at their defaults.

    Cells store options so, and adding an implied option does not change the ids of existing cells.
    """
    return {
        key: value
        for key, value in options.items()
        if not (schemas[key].get("implied") and value == schemas[key]["default"])
    }


def _files(folder: str) -> list[str]:
    return sorted(path.stem for path in (Path(__file__).parent / folder).glob("[!_]*.py"))
