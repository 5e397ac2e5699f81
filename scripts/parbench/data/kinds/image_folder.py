"""Image files of one size in train/<class>/ and test/<class>/."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from parbench import files
from parbench.data.download import bar
from parbench.data.source import Images, Source
from parbench.errors import ParbenchError

if TYPE_CHECKING:
    import numpy as np

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm"}
MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}  # all 8 bits a channel


class Kind(Source):
    """A folder of this machine; images are taken as RGB, by class and then by file name."""

    kind: Literal["image-folder"]
    path: str = Field(
        min_length=1,
        description="the folder that holds train/ and test/, relative to the work folder or "
        "absolute; ~ is the home folder",
    )

    def folder(self) -> Path:
        """``path`` as this machine has it."""
        return Path(os.path.expanduser(self.path))

    def identify(self) -> str:
        """SHA-256 over the relative names and digests of all images."""
        root = self.folder()
        paths = [*_images(root, "train"), *_images(root, "test")]
        return files.digest(
            [[path.relative_to(root).as_posix(), files.sha256_file(path)] for path in paths]
        )

    def read(self) -> Images:
        """Decode all images."""
        import numpy as np

        root = self.folder()
        train, test = _images(root, "train"), _images(root, "test")
        paths = [*train, *test]
        classes = sorted({path.parent.name for path in paths})
        if len(classes) < 2:
            raise ParbenchError(
                f"{root}: images of {len(classes)} classes; at least 2 are needed, in "
                "train/<class>/ and test/<class>/"
            )
        labels = np.array([classes.index(path.parent.name) for path in paths], dtype=np.int64)
        shape = _decode(paths[0]).shape
        images = np.empty((len(paths), *shape), dtype=np.uint8)
        with ThreadPoolExecutor(4) as pool:  # decoding frees the GIL
            decoded = bar(pool.map(_decode, paths), "decode", len(paths), unit=" images")
            for index, pixels in enumerate(decoded):
                if pixels.shape != shape:
                    raise ParbenchError(
                        f"{paths[index]}: {pixels.shape[2]}x{pixels.shape[1]} pixels, but "
                        f"{paths[0]} has {shape[2]}x{shape[1]}; resize them all to one size first"
                    )
                images[index] = pixels
        return Images(
            train_images=images[: len(train)],
            train_labels=labels[: len(train)],
            test_images=images[len(train) :],
            test_labels=labels[len(train) :],
            classes=classes,
            source=self.path,
            source_sha256=self.identify(),
        )


def _images(root: Path, part: str) -> list[Path]:
    """The images of train or test, by class and then by name.

    Names that begin with a dot are passed over; whatever else does not belong there is an error.
    """
    if not (root / part).is_dir():
        raise ParbenchError(f"{root / part}: no such folder; images lie in {part}/<class>/")
    found: list[Path] = []
    for folder in _entries(root / part):
        if not folder.is_dir():
            raise ParbenchError(f"{folder}: not a folder; images lie in {part}/<class>/")
        found += _entries(folder)
    for path in found:
        if path.suffix.lower() not in SUFFIXES:
            raise ParbenchError(
                f"{path}: not an image file; only {', '.join(sorted(SUFFIXES))} are read"
            )
    return found


def _entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _decode(path: Path) -> np.ndarray:
    """The pixels of an image file as RGB uint8 [3, H, W]."""
    import numpy as np
    from PIL import Image

    try:
        with Image.open(path) as image:
            if image.mode not in MODES:
                raise ValueError(f"its pixels are {image.mode}; only 8 bits a channel are read")
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except Exception as error:  # a decoder fed with anything raises anything
        raise ParbenchError(f"{path}: not a readable image ({error})") from None
