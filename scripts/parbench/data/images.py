"""Datasets of images before conversion, and the decoding of image files.

Does not import pydantic: a bare machine decodes the images of a kit (launch/kit.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePath
from typing import IO, TYPE_CHECKING, Any

from parbench.errors import ParbenchError

if TYPE_CHECKING:
    import numpy as np

MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}  # all with 8 bits a channel


@dataclass(frozen=True)
class Images:
    """A dataset before conversion: images uint8 [N, 3, H, W], labels int64 [N].

    ``source`` says in words where it came from; ``source_sha256`` is the digest of its bytes.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: list[str]
    source: str
    source_sha256: str

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the converted dataset's tensors by name."""
        names = ("train_images", "train_labels", "test_images", "test_labels")
        return {name: getattr(self, name) for name in names}

    def metadata(self) -> dict[str, Any]:
        """Return what is stored beside the tensors: each channel's mean and standard deviation."""
        mean, std = _moments(self.train_images)
        return {"mean": mean, "std": std}

    def described(self) -> dict[str, Any]:
        """Return what digest.json says about images only."""
        return {"image_shape": list(self.train_images.shape[1:])}


def _moments(images: np.ndarray) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel of uint8 [N, 3, H, W], on the scale 0..1.

    From integer sums, so that every machine gets the same last digit.
    """
    import numpy as np

    count = images.size // 3
    sums = images.sum((0, 2, 3), dtype=np.int64).tolist()
    squares = np.einsum("nchw,nchw->c", images, images, dtype=np.int64).tolist()
    mean = [total / (255 * count) for total in sums]
    std = [
        math.sqrt(count * square - total * total) / (255 * count)
        for total, square in zip(sums, squares, strict=True)
    ]
    return mean, std


def decoded(
    train: Sequence[PurePath],
    test: Sequence[PurePath],
    source: str,
    source_sha256: str,
    opened: Callable[[PurePath], PurePath | IO[bytes]] = lambda path: path,
    shown: Callable[[Iterable, int], Iterable] = lambda items, count: items,
) -> Images:
    """Decode the files ``train`` and ``test``, named <class>/<name>; ``opened`` opens a path.

    ``shown`` may show the progress. ParbenchError names a file that is invalid.
    """
    import numpy as np

    paths = [*train, *test]
    classes = sorted({path.parent.name for path in paths})
    labels = np.array([classes.index(path.parent.name) for path in paths], dtype=np.int64)

    def pixels(path: PurePath) -> np.ndarray:
        return _decode(path, opened(path))

    shape = pixels(paths[0]).shape
    images = np.empty((len(paths), *shape), dtype=np.uint8)
    with ThreadPoolExecutor(4) as pool:  # decoding releases the GIL
        for index, image in enumerate(shown(pool.map(pixels, paths), len(paths))):
            if image.shape != shape:
                raise ParbenchError(
                    f"{paths[index]}: {image.shape[2]}x{image.shape[1]} pixels, but "
                    f"{paths[0]} has {shape[2]}x{shape[1]}; resize them all to one size first"
                )
            images[index] = image
    return Images(
        train_images=images[: len(train)],
        train_labels=labels[: len(train)],
        test_images=images[len(train) :],
        test_labels=labels[len(train) :],
        classes=classes,
        source=source,
        source_sha256=source_sha256,
    )


def _decode(path: PurePath, file: PurePath | IO[bytes]) -> np.ndarray:
    """Return the pixels of an image file as RGB uint8 [3, H, W]."""
    import numpy as np
    from PIL import Image

    try:
        with Image.open(file) as image:
            if image.mode not in MODES:
                raise ValueError(f"its pixels are {image.mode}; only 8 bits a channel are read")
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except Exception as error:  # decoders raise anything for bad input
        raise ParbenchError(f"{path}: not a readable image ({error})") from None
