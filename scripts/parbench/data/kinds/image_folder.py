"""Image files of one size in train/<class>/ and test/<class>/."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from parbench import files
from parbench.data.download import bar
from parbench.data.images import Images, class_name, decoded
from parbench.data.source import Source
from parbench.errors import ParbenchError
from parbench.words import brief

# Those of torchvision's ImageFolder.
SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
PARTS = ("train", "test")
LAYOUT = "images belong in train/<class>/ and test/<class>/"


class Kind(Source):
    """A folder on this machine, read as torchvision's ImageFolder reads it: links are followed,
    images in folders within a class belong to it, and other files are passed over.

    Names that begin with a dot are passed over, too, images are turned as their EXIF data says, and
    transparent parts become white. Images are read as RGB, ordered by class and then by name.
    """

    kind: Literal["image-folder"]
    path: str = Field(
        min_length=1,
        description="the folder that holds train/ and test/, relative to the work folder or "
        "absolute; ~ is the home folder",
    )
    CONVERSION: ClassVar[int] = 2

    def folder(self) -> Path:
        """Return ``path`` with ~ and variables expanded."""
        return files.user_path(self.path)

    def images(self) -> list[Path]:
        """Return the paths of all images."""
        found = find(self.folder())
        return [*found.train, *found.test]

    def identify(self) -> str:
        """Return the SHA-256 of the relative names and digests of all images."""
        root = self.folder()
        return files.digest(
            [[member(root, path), files.sha256_file(path)] for path in self.images()]
        )

    def read(self) -> Images:
        """Decode all images."""
        found = find(self.folder())

        def shown(each: Iterable, number: int) -> Iterable:
            return bar(each, "decode", number, unit=" images")

        read = decoded(found.train, found.test, self.path, self.identify(), shown=shown)
        return replace(read, notes=(*found.notes(), *read.notes))


def member(root: Path, path: Path) -> str:
    """Return the name of an image below ``root``, <part>/<class>/..., in the Unicode form NFC:
    some systems change the form of names when they copy them.
    """
    return unicodedata.normalize("NFC", path.relative_to(root).as_posix())


@dataclass(frozen=True)
class Found:
    """The images of the folder ``root`` in order, each with its class, and what was passed over."""

    root: Path
    train: dict[Path, str]
    test: dict[Path, str]
    passed_over: list[Path]

    def notes(self) -> list[str]:
        """Return sentences on what a user may not expect."""
        notes = []
        if self.passed_over:
            names = ", ".join(sorted(member(self.root, path) for path in self.passed_over))
            notes.append(
                f"passed over, as names begin with a dot or do not end in {', '.join(SUFFIXES)}: "
                f"{brief(names, 200)} ({len(self.passed_over)} in all)"
            )
        above = len(self.root.parts) + len(("part", "class", "name"))
        deeper = sum(len(path.parts) > above for path in (*self.train, *self.test))
        if deeper:
            notes.append(f"images in folders within their class's folder: {deeper}")
        return notes


def find(root: Path) -> Found:
    """Return the images in ``root``. ParbenchError names what is missing or out of place."""
    for folder in (root, *(root / part for part in PARTS)):
        _require_folder(folder, root)
    passed_over: list[Path] = []
    by_part = {part: _by_class(root / part, passed_over) for part in PARTS}
    _require_classes(root, by_part)
    train, test = (
        {
            path: name
            for name in sorted(by_part[part])
            for path in sorted(by_part[part][name], key=lambda path: member(root, path))
        }
        for part in PARTS
    )
    return Found(root, train, test, passed_over)


def _require_folder(folder: Path, root: Path) -> None:
    if folder.is_dir():
        return
    if folder.exists():
        raise ParbenchError(f"{folder}: not a folder; unpack an archive first; {LAYOUT}")
    there = ""
    if folder != root:
        names = brief(", ".join(sorted(os.listdir(root)))) or "nothing"
        there = f"; {root} holds {names}: rename or link what is meant"
    raise ParbenchError(f"{folder}: no such folder; {LAYOUT}{there}")


def _by_class(folder: Path, passed_over: list[Path]) -> dict[str, list[Path]]:
    """Return the images in the folder of a part by class; add other names to ``passed_over``."""
    by_class: dict[str, list[Path]] = {}
    for entry in _entries(folder, passed_over):
        path = folder / entry.name
        if entry.is_dir():
            images = _images_below(path, (), passed_over)
            by_class.setdefault(_class_name(path), []).extend(images)
        elif path.suffix.lower() in SUFFIXES:
            raise ParbenchError(f"{path}: not in the folder of a class; {LAYOUT}")
        else:
            passed_over.append(path)
    return by_class


def _images_below(folder: Path, above: tuple[str, ...], passed_over: list[Path]) -> Iterator[Path]:
    """Yield the images in ``folder`` and its folders; ``above`` are the real paths of those that
    it lies in."""
    real = os.path.realpath(folder)
    if real in above:
        raise ParbenchError(f"{folder}: a link to a folder that it lies in; delete the link")
    for entry in _entries(folder, passed_over):
        path = folder / entry.name
        if entry.is_dir():
            yield from _images_below(path, (*above, real), passed_over)
        elif path.suffix.lower() not in SUFFIXES:
            passed_over.append(path)
        elif entry.is_file():
            yield path
        else:
            raise ParbenchError(f"{path}: neither a file nor a folder; remove it")


def _entries(folder: Path, passed_over: list[Path]) -> list[os.DirEntry]:
    """Return what ``folder`` holds; add names that begin with a dot to ``passed_over``."""
    visible = []
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if entry.name.startswith("."):
            passed_over.append(folder / entry.name)
        elif entry.is_symlink() and not os.path.exists(entry):
            raise ParbenchError(
                f"{entry.path}: a link to {os.readlink(entry)}, which is not there; correct or "
                "delete the link"
            )
        else:
            visible.append(entry)
    return visible


def _class_name(folder: Path) -> str:
    """Return the class of the images in ``folder``. ParbenchError if its name is not UTF-8."""
    name = os.fsencode(folder.name)
    try:
        return class_name(name.decode())
    except UnicodeDecodeError:
        raise ParbenchError(
            f"{folder.parent}: the name of the class {name} is not UTF-8; rename its folder"
        ) from None


def _require_classes(root: Path, by_part: Mapping[str, Mapping[str, list[Path]]]) -> None:
    """Check that there are two classes, and that each can be trained and tested."""
    names = sorted(set().union(*by_part.values()))
    if len(names) < 2:
        there = f"only the class {names[0]!r}" if names else "no class"
        raise ParbenchError(f"{root}: {there}; at least 2 are needed: {LAYOUT}")
    lacking = [f"{part}/{name}" for name in names for part in PARTS if not by_part[part].get(name)]
    if lacking:
        raise ParbenchError(
            f"{root}: no images in {brief(', '.join(lacking), 200)}; a class needs some in train/ "
            f"and in test/ (ending in {', '.join(SUFFIXES)}): add them, or rename or delete the "
            "class's folders"
        )
