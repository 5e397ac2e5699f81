"""Models, one file each, loaded by name.

A model file defines

- ``OPTIONS``: a JSON schema (with a default) for each option that a study may set; ``build`` may
  get no `implied` one, which then has its default,
- ``SMALL``: options of a small version, for scripts/equivalence.py,
- ``cuts(stages, options)``: the names of the blocks that begin the 2nd, 3rd, ... of ``stages``
  balanced stages; ParbenchError if the model cannot be cut into that many,
- ``build(num_classes, image_size, options)``: a plain single-device ``nn.Sequential`` of named
  blocks, unaware of parallelism, with one tensor passing between blocks.

The file of a text model also defines ``VOCABULARY``, its tokenizer: wordpiece or bpe. Its ``build``
takes a ``Vocabulary`` (data/tokens.py) instead of the image size.

torch is imported inside ``build`` only: the workflow reads options and cuts without it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType


def names() -> list[str]:
    """Return the names of all models: the files in this folder."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


def load(name: str) -> ModuleType:
    """Return the module of the model ``name``."""
    return importlib.import_module(f"parbench.models.{name}")


def vocabulary(name: str) -> str | None:
    """Return the tokenizer of the model ``name``; None for an image model."""
    return getattr(load(name), "VOCABULARY", None)


def options(name: str, given: dict) -> dict:
    """Return all options of the model ``name``: ``given``, else defaults."""
    return {key: schema["default"] for key, schema in load(name).OPTIONS.items()} | given


def stated_options(name: str, options: dict) -> dict:
    """Return ``options`` of the model ``name`` without implied ones at their defaults, as in cells:
    those older than the option keep their ids."""
    schemas = load(name).OPTIONS
    return {
        key: value
        for key, value in options.items()
        if not (schemas[key].get("implied") and value == schemas[key]["default"])
    }
