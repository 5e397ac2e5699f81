"""Where a dataset comes from: an entry of config.yaml's ``datasets`` table, as its kind reads it.

The kind ``image-folder`` is the class ``Kind`` of kinds/image_folder.py. Planning checks entries
with it, so that numpy is imported only where images are read.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pydantic

from parbench.errors import ParbenchError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Images:
    """A dataset as its source gives it: images uint8 [N, 3, H, W], labels int64 [N].

    ``source`` says in words where it came from, ``source_sha256`` what bytes that was.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: list[str]
    source: str
    source_sha256: str


class Source(pydantic.BaseModel, extra="forbid", strict=True, frozen=True):
    """One dataset's entry. A kind adds its keys, each a field with a description."""

    kind: str

    def identify(self) -> str | None:
        """SHA-256 of what ``read`` would read now; None when that is gone."""
        raise NotImplementedError

    def read(self) -> Images:
        """Return the images. ParbenchError names the file that is not as it must be."""
        raise NotImplementedError


def kinds() -> list[str]:
    """Every kind that there is, by name."""
    files = (Path(__file__).parent / "kinds").glob("[a-z]*.py")
    return sorted(path.stem.replace("_", "-") for path in files)


def load(kind: str) -> type[Source]:
    """The class of one of ``kinds``."""
    return importlib.import_module(f"parbench.data.kinds.{kind.replace('-', '_')}").Kind


def parse(name: str, spec: dict) -> Source:
    """The entry ``spec`` of the dataset ``name``. ParbenchError names the key and its value."""
    kind = spec.get("kind")
    if kind not in kinds():
        raise ParbenchError(f"datasets.{name}.kind: {kind!r} is not one of {', '.join(kinds())}")
    try:
        return load(kind)(**spec)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key = ".".join(["datasets", name, *map(str, first["loc"])])
        said = first["msg"].removeprefix("Value error, ")
        raise ParbenchError(f"{key}: {said} (value {first['input']!r})") from None


def local_path(path: str) -> Path:
    """``path`` as a file of this machine; a ~ that is nobody's home folder stands for itself."""
    return Path(os.path.expanduser(path))
