"""The 1,797 handwritten digits that ship with scikit-learn: no network is needed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal

from parbench.data.images import LabeledImages
from parbench.data.source import Source
from parbench.errors import ParbenchError

if TYPE_CHECKING:
    import numpy as np

# SHA-256 of the images and labels as bytes, which does not depend on the release of scikit-learn.
SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
TEST_IMAGES = 360


class Kind(Source, frozen=True):
    """8x8 gray images with values 0..16, converted to CIFAR-10's shape and the range 0..255.

    They are enlarged fourfold by bilinear interpolation; the three channels are equal.
    """

    kind: Literal["digits"]

    def read(self) -> LabeledImages:
        """Read, check, enlarge and split scikit-learn's digits."""
        import numpy as np
        from sklearn.datasets import load_digits

        bunch: Any = load_digits()
        gray, labels = bunch.images.astype(np.uint8), bunch.target.astype(np.int64)
        sha256 = hashlib.sha256(gray.tobytes() + labels.astype(np.uint8).tobytes()).hexdigest()
        if sha256 != SHA256:
            raise ParbenchError(
                f"scikit-learn's load_digits: its SHA-256 is {sha256}, {SHA256} is expected; "
                "install another release of scikit-learn (1.4 and later are known to fit)"
            )
        images = np.repeat(_enlarged(gray)[:, None], 3, axis=1)
        test = _test_part(labels)
        return LabeledImages(
            train_images=images[~test],
            train_labels=labels[~test],
            test_images=images[test],
            test_labels=labels[test],
            classes=[str(name) for name in bunch.target_names],
            source="scikit-learn load_digits",
            source_sha256=sha256,
        )


def _enlarged(gray: np.ndarray) -> np.ndarray:
    """Convert uint8 [N, 8, 8] of 0..16 to uint8 [N, 32, 32] of 0..255, bilinearly.

    Repeated pixels would leave every 4x4 patch flat, without detail for a transformer with patches
    of that size. Integer arithmetic makes the result independent of a library's rounding.
    """
    import numpy as np

    eighths = np.zeros((32, 8), np.int64)
    for at in range(32):
        # The center of pixel `at` is at (at + 1/2) / 4 - 1/2 on the small image.
        left, rest = divmod(2 * at - 3, 8)
        eighths[at, max(left, 0)] += 8 - rest
        eighths[at, min(left + 1, 7)] += rest
    sums = eighths @ gray.astype(np.int64) @ eighths.T  # 0..16 * 64
    return ((sums * 255 + 512) // 1024).astype(np.uint8)


def _test_part(labels: np.ndarray) -> np.ndarray:
    """Return a mask, bool [N], of TEST_IMAGES samples, each class in proportion to its size.

    Shares are rounded by the largest-remainder method, so that they add up. Each class gives the
    samples whose indices have the smallest hashes, independent of NumPy's random streams.
    """
    import numpy as np

    sizes = np.bincount(labels)
    shares, remainders = divmod(sizes * TEST_IMAGES, len(labels))
    largest = sorted(range(len(sizes)), key=lambda label: -remainders[label])
    for label in largest[: TEST_IMAGES - shares.sum()]:
        shares[label] += 1
    mask = np.zeros(len(labels), dtype=bool)
    for label, share in enumerate(shares):
        members = np.flatnonzero(labels == label)
        hashes = [hashlib.sha256(b"parbench digits %d" % index).digest() for index in members]
        mask[members[sorted(range(len(members)), key=hashes.__getitem__)[:share]]] = True
    return mask
