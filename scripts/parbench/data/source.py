"""Where a dataset comes from: an entry of config.yaml's ``datasets`` table, as its kind reads it.

The kind ``image-folder`` is the class ``Kind`` of kinds/image_folder.py. Planning checks entries
with it, so that numpy is imported only where images are read.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pydantic

if TYPE_CHECKING:
    from parbench.data.images import Images
    from parbench.data.texts import Texts


class Source(pydantic.BaseModel, extra="forbid", strict=True, frozen=True):
    """One dataset's entry. A kind adds its keys, each a field with a description."""

    kind: str
    HOLDS: ClassVar[str] = "images"  # or texts

    def folder(self) -> Path | None:
        """The folder of this machine that is read; None where the entry itself pins the bytes."""
        return None

    def identify(self) -> str:
        """SHA-256 of what the folder holds now."""
        raise NotImplementedError

    def read(self) -> Images | Texts:
        """Return what it holds. ParbenchError names the file that is not as it must be."""
        raise NotImplementedError


def kinds() -> list[str]:
    """All kinds, by name."""
    files = (Path(__file__).parent / "kinds").glob("[a-z]*.py")
    return sorted(path.stem.replace("_", "-") for path in files)


def load(kind: str) -> type[Source]:
    """The class of one of ``kinds``."""
    return importlib.import_module(f"parbench.data.kinds.{kind.replace('-', '_')}").Kind
