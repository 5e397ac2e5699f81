"""Datasets of images before conversion, and the decoding of image files."""

from __future__ import annotations

import math
import os
import tempfile
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from parbench.errors import ParbenchError, sentence

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}  # all have 8 bits per channel
# The allowed decoders of Pillow; others run programs (EPS) or are rarely used, so rarely tested.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
BACKGROUND = "white"  # the background of transparent images


@dataclass(frozen=True)
class LabeledImages:
    """A dataset before conversion: images uint8 [N, 3, H, W], labels int64 [N].

    ``source`` describes where it came from; ``source_sha256`` is the digest of its bytes.
    ``notes``: sentences about files that were ignored or changed.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: list[str]
    source: str
    source_sha256: str
    notes: tuple[str, ...] = ()

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the converted dataset's tensors by name."""
        names = ("train_images", "train_labels", "test_images", "test_labels")
        return {name: getattr(self, name) for name in names}

    def metadata(self) -> dict[str, object]:
        """Return the metadata stored with the tensors: each channel's mean and standard
        deviation."""
        mean, std = _moments(self.train_images)
        return {"mean": mean, "std": std}

    def described(self) -> dict[str, object]:
        """Return the fields of digest.json that only image datasets have."""
        notes = {"notes": list(self.notes)} if self.notes else {}
        return {"image_shape": list(self.train_images.shape[1:]), **notes}


def _moments(images: np.ndarray) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel of uint8 [N, 3, H, W], on the scale 0..1.

    They are computed from integer sums, so that every machine gets the same last digit.
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


def class_name(folder: str) -> str:
    """Return the class of the images in a folder of this name: the name in the Unicode form NFC, as
    systems differ in the form that they write.
    """
    return unicodedata.normalize("NFC", folder)


def decoded(
    train: Mapping[Path, str],
    test: Mapping[Path, str],
    source: str,
    source_sha256: str,
    shown: Callable[[Iterable, int], Iterable] = lambda items, count: items,
    side: int | None = None,
) -> LabeledImages:
    """Decode the files ``train`` and ``test``, each a path with its class.

    ``shown`` wraps an iterable of the given length to show progress. ``side``: resize the middle
    square of each image to this many pixels. Raises ParbenchError, which names the file, for an
    invalid file.
    """
    import numpy as np

    paths, names = [*train, *test], [*train.values(), *test.values()]
    classes = sorted(set(names))
    label_of = {name: at for at, name in enumerate(classes)}
    labels = np.array([label_of[name] for name in names], dtype=np.int64)

    def pixels(path: PurePath) -> tuple[np.ndarray, list[str]]:
        return _decode(path, side)

    notes: Counter[str] = Counter()
    # Pillow's warnings are recorded, not printed; threads share the record.
    with warnings.catch_warnings(record=True) as warned, ThreadPoolExecutor(4) as pool:
        warnings.simplefilter("always")
        shape = pixels(paths[0])[0].shape
        images = _room(len(paths), shape)
        warned.clear()
        # Decoding releases the GIL.
        for at, (image, its_notes) in enumerate(shown(pool.map(pixels, paths), len(paths))):
            if image.shape != shape:
                raise ParbenchError(
                    f"{paths[at]}: {image.shape[2]}x{image.shape[1]} pixels, but {paths[0]} has "
                    f"{shape[2]}x{shape[1]}; set the dataset's `image_size` in config.yaml"
                )
            images[at] = image
            notes.update(its_notes)
    notes.update(f"Pillow warns: {' '.join(str(each.message).split())}" for each in warned)
    return LabeledImages(
        train_images=images[: len(train)],
        train_labels=labels[: len(train)],
        test_images=images[len(train) :],
        test_labels=labels[len(train) :],
        classes=classes,
        source=source,
        source_sha256=source_sha256,
        notes=tuple(f"{count} of {len(paths)} images: {note}" for note, count in notes.items()),
    )


def _room(count: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array for ``count`` images, in a temporary file: they may be larger than memory.

    Raises ParbenchError if there is not enough room for it.
    """
    import numpy as np

    size = count * math.prod(shape)
    try:
        with tempfile.TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):  # otherwise a full disk would end the process later
                os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, np.uint8, "w+", shape=(count, *shape))
    except OSError as error:
        raise ParbenchError(
            f"{count:,} images of {shape[2]}x{shape[1]} pixels take {size / 2**30:,.1f} GiB in "
            f"{tempfile.gettempdir()} while they are converted: {sentence(error)}; or make them "
            "smaller or fewer"
        ) from None


def _decode(path: PurePath, side: int | None) -> tuple[np.ndarray, list[str]]:
    """Return the pixels of an image file as RGB uint8 [3, H, W], as a viewer shows them, and notes
    on how they were converted. Raises ParbenchError if it cannot be read.
    """
    import numpy as np
    from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

    notes = []
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > (Image.MAX_IMAGE_PIXELS or math.inf):
                raise ValueError(f"more than {Image.MAX_IMAGE_PIXELS:,} pixels")
            if image.mode not in MODES:
                raise ValueError(f"its pixels are {image.mode}; only 8 bits per channel are read")
            if any(";16" in str(tile.args) for tile in image.tile):
                notes.append("only the upper 8 of 16 bits per channel are read")
            if getattr(image, "n_frames", 1) > 1:
                notes.append("only the first of several frames is read")
            # Checked before the pixels are read, since reading turns a TIFF.
            if image.getexif().get(ExifTags.Base.Orientation, 1) in range(2, 9):
                notes.append("turned as the orientation in its EXIF data says")
            ImageOps.exif_transpose(image, in_place=True)
            rgb, is_transparent = _opaque(image)
            if is_transparent:
                notes.append(f"transparent parts are shown on {BACKGROUND}")
            if side is not None:
                rgb = ImageOps.fit(rgb, (side, side), Image.Resampling.BILINEAR)
            return np.asarray(rgb).transpose(2, 0, 1), notes
    except UnidentifiedImageError:
        raise ParbenchError(
            f"{path}: not a readable image (empty, or none of {', '.join(FORMATS)}); replace or "
            "remove it"
        ) from None
    except Exception as error:  # decoders raise any error for bad input
        raise ParbenchError(
            f"{path}: not a readable image ({error or type(error).__name__}); replace or remove it"
        ) from None


def _opaque(image: Image.Image) -> tuple[Image.Image, bool]:
    """Return ``image`` in RGB, on the background, and whether any of it was transparent."""
    from PIL import Image

    if "A" not in image.getbands() and "transparency" not in image.info:
        return image.convert("RGB"), False
    layer = image.convert("RGBA")
    if layer.getchannel("A").getextrema() == (255, 255):
        return layer.convert("RGB"), False
    background = Image.new("RGBA", layer.size, BACKGROUND)
    return Image.alpha_composite(background, layer).convert("RGB"), True
