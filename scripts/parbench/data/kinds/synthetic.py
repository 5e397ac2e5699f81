"""Random images, for studies of speed: there is nothing to learn from them."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from parbench import files
from parbench.data.images import LabeledImages
from parbench.data.source import Source


class Kind(Source, frozen=True):
    """Random bytes as images; sample i belongs to class i modulo ``classes``."""

    kind: Literal["synthetic"]
    classes: int = Field(
        ge=2, le=100_000, description="number of classes, assigned to images in turn"
    )
    image_size: int = Field(ge=8, le=1024, description="side of an image, in pixels of 3 colors")
    train_samples: int = Field(
        ge=2, le=10_000_000, description="number of images for training, at least one per class"
    )
    test_samples: int = Field(
        ge=2,
        le=10_000_000,
        description="number of further images for testing, at least one per class",
    )
    seed: int = Field(
        ge=0, lt=2**32, description="random seed; the same one gives the same bytes everywhere"
    )

    @model_validator(mode="after")
    def _has_every_class(self) -> Kind:
        if min(self.train_samples, self.test_samples) < self.classes:
            raise ValueError(
                f"train_samples and test_samples must be at least {self.classes}, one per class"
            )
        return self

    def read(self) -> LabeledImages:
        """Draw the images."""
        import numpy as np

        images = []
        for part, count in enumerate((self.train_samples, self.test_samples)):
            # NumPy guarantees that a bit generator's raw stream never changes; it does not for
            # methods that draw numbers from a range.
            stream = np.random.PCG64(np.random.SeedSequence([self.seed, part]))
            shape = (count, 3, self.image_size, self.image_size)
            words = stream.random_raw(-(-math.prod(shape) // 8)).astype("<u8", copy=False)
            images.append(words.view(np.uint8)[: math.prod(shape)].reshape(shape))
        return LabeledImages(
            train_images=images[0],
            train_labels=np.arange(self.train_samples) % self.classes,
            test_images=images[1],
            test_labels=np.arange(self.test_samples) % self.classes,
            classes=[str(at) for at in range(self.classes)],
            source=f"drawn at random, seed {self.seed}",
            source_sha256=files.digest(["synthetic", self.model_dump()]),
        )
