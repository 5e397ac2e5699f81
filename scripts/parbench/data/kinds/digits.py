"""The 1,797 handwritten digits that ship with scikit-learn: no network is needed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

from parbench.data.images import Images
from parbench.data.source import Source
from parbench.errors import ParbenchError

if TYPE_CHECKING:
    import numpy as np

# Over the images and the labels, both as bytes: whatever release of scikit-learn brings them.
SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
TEST_IMAGES = 360


class Kind(Source):
    """Grey images 8x8 with values 0..16, converted to the shape of CIFAR-10.

    Enlarged four times by linear interpolation, the values 0..255, the three channels equal.
    """

    kind: Literal["digits"]

    def read(self) -> Images:
        """Read, check, enlarge and split scikit-learn's digits."""
        import numpy as np
        from sklearn.datasets import load_digits

        bunch = load_digits()
        grey, labels = bunch.images.astype(np.uint8), bunch.target.astype(np.int64)
        found = hashlib.sha256(grey.tobytes() + labels.astype(np.uint8).tobytes()).hexdigest()
        if found != SHA256:
            raise ParbenchError(
                f"scikit-learn's load_digits: its SHA-256 is {found}, {SHA256} is expected; "
                "install another release of scikit-learn (1.4 and later are known to fit)"
            )
        images = np.repeat(_enlarged(grey)[:, None], 3, axis=1)
        test = _test_part(labels)
        return Images(
            train_images=images[~test],
            train_labels=labels[~test],
            test_images=images[test],
            test_labels=labels[test],
            classes=[str(name) for name in bunch.target_names],
            source="scikit-learn load_digits",
            source_sha256=found,
        )


def _enlarged(grey: np.ndarray) -> np.ndarray:
    """uint8 [N, 8, 8] of 0..16 -> uint8 [N, 32, 32] of 0..255, bilinear.

    Repeating pixels would leave every 4x4 patch flat, and a transformer that sees patches of that
    size with nothing to tell them by. In whole numbers, so that no library's rounding matters.
    """
    import numpy as np

    eighths = np.zeros((32, 8), np.int64)
    for at in range(32):
        # The centre of pixel `at` lies at (at + 1/2) / 4 - 1/2 on the small image.
        left, rest = divmod(2 * at - 3, 8)
        eighths[at, max(left, 0)] += 8 - rest
        eighths[at, min(left + 1, 7)] += rest
    sums = eighths @ grey.astype(np.int64) @ eighths.T  # 0..16 * 64
    return ((sums * 255 + 512) // 1024).astype(np.uint8)


def _test_part(labels: np.ndarray) -> np.ndarray:
    """A mask, bool [N], of TEST_IMAGES samples with each class's share of them.

    Shares that are not whole are rounded so that they add up (largest remainder). Of each class
    those whose index has the smallest hashes: no random stream of a NumPy release matters.
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
