"""Where a dataset comes from: an entry of config.yaml's ``datasets`` table, read by its kind.

The kind ``image-folder`` is the class ``Kind`` of kinds/image_folder.py. Planning imports kinds to
check entries, so kinds import numpy only where they read data.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pydantic

from parbench.data.images import LabeledImages
from parbench.data.texts import Texts
from parbench.files import digest


class Source(pydantic.BaseModel, extra="forbid", strict=True, frozen=True):
    """One dataset's entry. A kind adds its own keys, each a field with a description."""

    kind: str
    HOLDS: ClassVar[str] = "images"  # or texts
    # Increase it, in a kind, when the same source gives other bytes: its datasets are then
    # converted again, and their cells trained again. Other changes to the code rerun nothing.
    CONVERSION: ClassVar[int] = 1

    def folder(self) -> Path | None:
        """Return the local folder that is read; None if the entry pins the bytes itself."""
        return None

    def images(self) -> list[Path]:
        """Return the paths of the folder's images."""
        raise NotImplementedError

    def identify(self) -> str:
        """Return the SHA-256 of the folder's current content."""
        raise NotImplementedError

    def read(self) -> LabeledImages | Texts:
        """Return the dataset. Raises ParbenchError, which names the file, if one is invalid."""
        raise NotImplementedError


def kinds() -> list[str]:
    """Return the names of all kinds, sorted."""
    files = (Path(__file__).parent / "kinds").glob("[a-z]*.py")
    return sorted(path.stem.replace("_", "-") for path in files)


def load(kind: str) -> type[Source]:
    """Return the class of one of ``kinds``."""
    return importlib.import_module(f"parbench.data.kinds.{kind.replace('-', '_')}").Kind


def made_from(spec: Mapping[str, Any]) -> str:
    """Return a digest of what determines a dataset's bytes besides a local folder's files: its
    entry ``spec`` without mirrors, and the conversion number of its kind."""
    entry = {key: value for key, value in spec.items() if key != "urls"}
    return digest([entry, load(spec["kind"]).CONVERSION])
