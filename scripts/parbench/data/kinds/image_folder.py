"""Image files in train/<class>/ and test/<class>/, or in <class>/ to be split."""

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
from parbench.data.images import LabeledImages, class_name, decoded
from parbench.data.source import Source
from parbench.errors import ParbenchError
from parbench.words import brief

# The same as those of torchvision's ImageFolder.
SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
PARTS = ("train", "test")
LAYOUT = "images belong in train/<class>/ and test/<class>/"
SPLIT_LAYOUT = "images belong in <class>/, since `test_share` is set"


class Kind(Source, frozen=True):
    """A folder on this machine, read as torchvision's ImageFolder reads it: links are followed,
    images in folders within a class's folder belong to the class, and other files are ignored.

    Unlike there, names that begin with a dot are ignored, too, images are turned according to their
    EXIF data, and transparent parts become white. Images are read as RGB, ordered by class and then
    by name.
    """

    kind: Literal["image-folder"]
    path: str = Field(
        min_length=1,
        description="the folder that contains train/ and test/, relative to the project's folder "
        "or absolute; ~ is the home folder",
    )
    image_size: int | None = Field(
        None,
        ge=8,
        le=1024,
        description="side, in pixels, to which the middle square of each image is resized "
        "(bilinearly); by default images stay as they are and must all have one size",
    )
    test_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="share of each class's images for testing, chosen by a digest of their names; "
        "the folder then holds <class>/ instead of train/ and test/",
    )
    CONVERSION: ClassVar[int] = 2

    def folder(self) -> Path:
        """Return ``path`` with ~ and variables expanded."""
        return files.user_path(self.path, "path")

    def images(self) -> list[Path]:
        """Return the paths of all images."""
        found = find(self.folder(), self.test_share)
        return [*found.train, *found.test]

    def identify(self) -> str:
        """Return the SHA-256 of the relative names and digests of all images."""
        root = self.folder()
        return files.digest(
            [[member(root, path), files.sha256_file(path)] for path in self.images()]
        )

    def read(self) -> LabeledImages:
        """Decode all images."""
        found = find(self.folder(), self.test_share)

        def shown(each: Iterable, number: int) -> Iterable:
            return bar(each, "decode", number, unit=" images")

        read = decoded(
            found.train,
            found.test,
            self.path,
            self.identify(),
            shown=shown,
            side=self.image_size,
        )
        return replace(read, notes=(*found.notes(), *read.notes))


def member(root: Path, path: Path) -> str:
    """Return the name of an image below ``root``, <part>/<class>/..., in the Unicode form NFC:
    some systems change the form of names when they copy them.
    """
    return unicodedata.normalize("NFC", path.relative_to(root).as_posix())


@dataclass(frozen=True)
class Found:
    """The images of the folder ``root`` in order, each with its class, and the ignored names."""

    root: Path
    train: dict[Path, str]
    test: dict[Path, str]
    passed_over: list[Path]
    depth: int  # parts, below the root, of the path of an image directly in its class's folder

    def notes(self) -> list[str]:
        """Return sentences about what a user may not expect: ignored names, and deeper folders."""
        notes = []
        if self.passed_over:
            names = ", ".join(sorted(member(self.root, path) for path in self.passed_over))
            notes.append(
                f"ignored, as names begin with a dot or do not end in {', '.join(SUFFIXES)}: "
                f"{brief(names, 200)} ({len(self.passed_over)} in all)"
            )
        above = len(self.root.parts) + self.depth
        deeper = sum(len(path.parts) > above for path in (*self.train, *self.test))
        if deeper:
            notes.append(f"images in folders within their class's folder: {deeper}")
        return notes


def find(root: Path, test_share: float | None = None) -> Found:
    """Return the images in ``root``, split by ``test_share`` if it is not None.

    Raises ParbenchError, which names what is missing or out of place.
    """
    passed_over: list[Path] = []
    layout = LAYOUT if test_share is None else SPLIT_LAYOUT
    folders = () if test_share else (root / part for part in PARTS)
    for folder in (root, *folders):
        _require_folder(folder, root, layout)
    if test_share is None:
        by_part = {part: _by_class(root / part, passed_over, layout) for part in PARTS}
    else:
        by_part = _split(root, _by_class(root, passed_over, layout), test_share)
    _require_classes(root, by_part, layout)
    train, test = (
        {
            path: name
            for name in sorted(by_part[part])
            for path in sorted(by_part[part][name], key=lambda path: member(root, path))
        }
        for part in PARTS
    )
    return Found(root, train, test, passed_over, 3 if test_share is None else 2)


def _split(
    root: Path, by_class: Mapping[str, list[Path]], share: float
) -> dict[str, dict[str, list[Path]]]:
    """Return the images of each class by part: the ``share`` whose names have the smallest digests
    is for testing, at least one image, but not all of several."""
    by_part: dict[str, dict[str, list[Path]]] = {part: {} for part in PARTS}
    for name, paths in by_class.items():
        ordered = sorted(paths, key=lambda path: files.digest(member(root, path)))
        count = min(max(1, round(share * len(paths))), len(paths) - 1)
        by_part["test"][name], by_part["train"][name] = ordered[:count], ordered[count:]
    return by_part


def _require_folder(folder: Path, root: Path, layout: str) -> None:
    if folder.is_dir():
        return
    if folder.exists():
        raise ParbenchError(f"{folder}: not a folder; unpack an archive first; {layout}")
    there = ""
    if folder != root:
        names = brief(", ".join(sorted(os.listdir(root)))) or "nothing"
        there = f"; {root} holds {names}: rename or link what is meant"
    raise ParbenchError(f"{folder}: no such folder; {layout}{there}")


def _by_class(folder: Path, passed_over: list[Path], layout: str) -> dict[str, list[Path]]:
    """Return the images in the folder of a part by class; add ignored names to ``passed_over``."""
    by_class: dict[str, list[Path]] = {}
    for entry in _entries(folder, passed_over):
        path = folder / entry.name
        if entry.is_dir():
            images = _images_below(path, (), passed_over)
            by_class.setdefault(_class_name(path), []).extend(images)
        elif path.suffix.lower() in SUFFIXES:
            raise ParbenchError(f"{path}: not in the folder of a class; {layout}")
        else:
            passed_over.append(path)
    return by_class


def _images_below(folder: Path, above: tuple[str, ...], passed_over: list[Path]) -> Iterator[Path]:
    """Yield the images in ``folder`` and its folders; ``above`` are the real paths of the folders
    that contain it."""
    real = os.path.realpath(folder)
    if real in above:
        raise ParbenchError(f"{folder}: a link to a folder that contains it; delete the link")
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
    """Return the entries of ``folder``; add names that begin with a dot to ``passed_over``."""
    visible = []
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if entry.name.startswith("."):
            passed_over.append(folder / entry.name)
        elif entry.is_symlink() and not os.path.exists(entry):
            raise ParbenchError(
                f"{entry.path}: a link to {os.readlink(entry)}, which does not exist; correct or "
                "delete the link"
            )
        else:
            visible.append(entry)
    return visible


def _class_name(folder: Path) -> str:
    """Return the class of the images in ``folder``. Raises ParbenchError if it is not UTF-8."""
    name = os.fsencode(folder.name)
    try:
        return class_name(name.decode())
    except UnicodeDecodeError:
        raise ParbenchError(
            f"{folder.parent}: the name of the class {name} is not UTF-8; rename its folder"
        ) from None


def _require_classes(
    root: Path, by_part: Mapping[str, Mapping[str, list[Path]]], layout: str
) -> None:
    """Raise ParbenchError unless there are two classes, each with images to train and to test."""
    names = sorted(set().union(*by_part.values()))
    if len(names) < 2:
        there = f"only the class {names[0]!r}" if names else "no class"
        raise ParbenchError(f"{root}: {there}; at least 2 are needed: {layout}")
    missing = [f"{part}/{name}" for name in names for part in PARTS if not by_part[part].get(name)]
    if missing:
        raise ParbenchError(
            f"{root}: no images in {brief(', '.join(missing), 200)}; a class needs some in train/ "
            f"and in test/ (ending in {', '.join(SUFFIXES)}): add them, or rename or delete the "
            "class's folders"
        )
