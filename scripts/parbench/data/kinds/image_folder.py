"""Image files of one size in train/<class>/ and test/<class>/."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from parbench import files
from parbench.data.download import bar
from parbench.data.source import Images, Source, local_path
from parbench.errors import ParbenchError
from parbench.printable import unsafe

if TYPE_CHECKING:
    import numpy as np

# Formats whose decoders are simple and common. Pillow may try no other, whatever a file's name.
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm"}
FORMATS = ["PNG", "JPEG", "BMP", "WEBP", "PPM"]
MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}  # all 8 bits a channel
MOST_PIXELS = 4096 * 4096  # more is a bomb: a small file that decodes to gigabytes
MOST_BYTES = 1 << 27


class Kind(Source):
    """A folder of this machine; images are taken as RGB, by class and then by file name."""

    kind: Literal["image-folder"]
    path: str = Field(
        min_length=1,
        description="the folder that holds train/ and test/, relative to the work folder or "
        "absolute; ~ is the home folder",
    )

    def identify(self) -> str | None:
        """SHA-256 over the relative names and digests of all images; None without the folder."""
        root = local_path(self.path)
        if not root.is_dir():
            return None
        paths = [path for images in _classes(root).values() for path in chain(*images.values())]
        return _digest(root, paths, list(_in_threads(files.sha256_file, paths, "compare")))

    def read(self) -> Images:
        """Decode all images."""
        import numpy as np

        root = local_path(self.path)
        parts = _classes(root)
        classes = list(parts["train"])
        paths = [path for images in parts.values() for path in chain(*images.values())]
        labels = [
            at for images in parts.values() for at, name in enumerate(images) for _ in images[name]
        ]
        shape = _decode(paths[0])[1].shape

        def decode(path: Path) -> tuple[str, np.ndarray]:
            digest, pixels = _decode(path)
            if pixels.shape != shape:
                raise ParbenchError(
                    f"{path}: {pixels.shape[2]}x{pixels.shape[1]} pixels, but {paths[0]} has "
                    f"{shape[2]}x{shape[1]}; resize them all to one size first"
                )
            return digest, pixels

        images = np.empty((len(paths), *shape), dtype=np.uint8)
        digests: list[str] = []
        for digest, pixels in _in_threads(decode, paths, "decode"):
            images[len(digests)] = pixels
            digests.append(digest)
        train = sum(map(len, parts["train"].values()))
        return Images(
            train_images=images[:train],
            train_labels=np.array(labels[:train], dtype=np.int64),
            test_images=images[train:],
            test_labels=np.array(labels[train:], dtype=np.int64),
            classes=classes,
            source=self.path,
            source_sha256=_digest(root, paths, digests),
        )


def _digest(root: Path, paths: list[Path], digests: list[str]) -> str:
    """SHA-256 over (relative name, SHA-256) of every image, in their order."""
    names = [path.relative_to(root).as_posix() for path in paths]
    return files.digest([list(pair) for pair in zip(names, digests, strict=True)])


def _in_threads(work: Callable, paths: list[Path], label: str) -> Iterator[Any]:
    """``work(path)`` in their order, from a few threads (hashing and decoding free the GIL)."""
    with ThreadPoolExecutor(4) as pool:
        yield from bar(pool.map(work, paths), total=len(paths), desc=label, unit=" images")


def _classes(root: Path) -> dict[str, dict[str, list[Path]]]:
    """The images of each class of train and test, classes by name.

    Names that begin with a dot are passed over; whatever else does not belong there is an error.
    """
    if not root.is_dir():
        raise ParbenchError(f"{root}: no such folder; `path` must hold train/ and test/")
    found: dict[str, dict[str, list[Path]]] = {"train": {}, "test": {}}
    for part, classes in found.items():
        if not (root / part).is_dir():
            raise ParbenchError(f"{root / part}: no such folder; images lie in {part}/<class>/")
        for folder in _entries(root, root / part):
            if not folder.is_dir():
                raise ParbenchError(f"{folder}: not a folder; images lie in {part}/<class>/")
            classes[folder.name] = _entries(root, folder)
            if not classes[folder.name]:
                raise ParbenchError(f"{folder}: the class has no image")
            for path in classes[folder.name]:
                if not path.is_file() or path.suffix.lower() not in SUFFIXES:
                    raise ParbenchError(
                        f"{path}: not an image file; only {', '.join(sorted(SUFFIXES))} are read"
                    )
    for here, there in (("train", "test"), ("test", "train")):
        if missing := sorted(set(found[here]) - set(found[there])):
            raise ParbenchError(
                f"{root / there / missing[0]}: no such folder, but {root / here / missing[0]} "
                "exists; train/ and test/ must hold the same classes"
            )
    if len(found["train"]) < 2:
        raise ParbenchError(
            f"{root / 'train'}: {len(found['train'])} classes; at least 2 are needed"
        )
    return found


def _entries(root: Path, folder: Path) -> list[Path]:
    """What lies in ``folder``, by name; ParbenchError for a link that leads out of ``root``."""
    paths = [folder / name for name in sorted(os.listdir(folder)) if name[0] != "."]
    for path in paths:
        if "\n" in path.name or unsafe(path.name):  # also one that is not UTF-8
            raise ParbenchError(
                f"{folder}: {path.name!a} holds a character that cannot be shown; rename it"
            )
        if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
            raise ParbenchError(f"{path}: a link to {path.resolve()}, which is outside of {root}")
    return paths


def _decode(path: Path) -> tuple[str, np.ndarray]:
    """The SHA-256 of an image file, and its pixels as RGB uint8 [3, H, W].

    The size is read from the header, before a pixel is decoded.
    """
    import numpy as np
    from PIL import Image

    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"the file has more than {MOST_BYTES:,} bytes")
        content = path.read_bytes()
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"{image.width}x{image.height} pixels are too many")
            if image.mode not in MODES:
                raise ValueError(f"its pixels are {image.mode}; only 8 bits a channel are read")
            pixels = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except Exception as error:  # a decoder fed with anything raises anything
        raise ParbenchError(f"{path}: not a readable image ({error})") from None
    return hashlib.sha256(content).hexdigest(), pixels
