"""Models, one file each, loaded by name.

A model file states

- ``OPTIONS``: a JSON schema (with a default) for each option that a study may set,
- ``SMALL``: options that make it small, for scripts/equivalence.py,
- ``cuts(stages, options)``: the names of the blocks that begin the 2nd, 3rd, ... of ``stages``
  balanced stages; ParbenchError when the file states no cut for that number,
- ``build(num_classes, image_size, options)``: a plain single-device ``nn.Sequential`` of named
  blocks, ignorant of parallelism, with one tensor passing between blocks.

The file of a model of texts also states ``VOCABULARY``, how its texts are cut into tokens:
wordpiece or bpe. Its ``build`` takes data/tokens.py's ``Vocabulary`` in the image size's place.

torch is imported inside ``build`` only: the workflow reads options and cuts without it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType


def names() -> list[str]:
    """All models: the files of this folder."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


def load(name: str) -> ModuleType:
    """The module of the model ``name``."""
    return importlib.import_module(f"parbench.models.{name}")


def vocabulary(name: str) -> str | None:
    """How the texts of the model ``name`` are cut into tokens; None for a model of images."""
    return getattr(load(name), "VOCABULARY", None)


def options(name: str, given: dict) -> dict:
    """Every option of the model ``name``, those not ``given`` by their defaults."""
    return {key: part["default"] for key, part in load(name).OPTIONS.items()} | given
