"""Image files of one size in train/<class>/ and test/<class>/."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field

from parbench import files
from parbench.data.download import bar
from parbench.data.images import Images, decoded
from parbench.data.source import Source
from parbench.errors import ParbenchError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm"}


class Kind(Source):
    """A folder on this machine; images are read as RGB, ordered by class and then by file name."""

    kind: Literal["image-folder"]
    path: str = Field(
        min_length=1,
        description="the folder that holds train/ and test/, relative to the work folder or "
        "absolute; ~ is the home folder",
    )

    def folder(self) -> Path:
        """Return ``path`` with ~ expanded."""
        return Path(os.path.expanduser(self.path))

    def identify(self) -> str:
        """Return the SHA-256 of the relative names and digests of all images."""
        root = self.folder()
        paths = [*images_in(root, "train"), *images_in(root, "test")]
        return files.digest(
            [[path.relative_to(root).as_posix(), files.sha256_file(path)] for path in paths]
        )

    def read(self) -> Images:
        """Decode all images."""
        root = self.folder()
        train, test = (images_in(root, part) for part in ("train", "test"))
        if (classes := len({path.parent.name for path in (*train, *test)})) < 2:
            raise ParbenchError(
                f"{root}: images of {classes} classes; at least 2 are needed, in "
                "train/<class>/ and test/<class>/"
            )

        def shown(each: Iterable, number: int) -> Iterable:
            return bar(each, "decode", number, unit=" images")

        return decoded(train, test, self.path, self.identify(), shown=shown)


def images_in(root: Path, part: str) -> list[Path]:
    """Return the images of train or test, ordered by class and then by name.

    Names that begin with a dot are ignored; anything else unexpected is a ParbenchError.
    """
    if not (root / part).is_dir():
        raise ParbenchError(f"{root / part}: no such folder; images lie in {part}/<class>/")
    paths: list[Path] = []
    for folder in _entries(root / part):
        if not folder.is_dir():
            raise ParbenchError(f"{folder}: not a folder; images lie in {part}/<class>/")
        paths += _entries(folder)
    for path in paths:
        if path.suffix.lower() not in SUFFIXES:
            raise ParbenchError(
                f"{path}: not an image file; only {', '.join(sorted(SUFFIXES))} are read"
            )
    return paths


def _entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
