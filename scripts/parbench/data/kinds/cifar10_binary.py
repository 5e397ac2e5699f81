"""CIFAR-10 as its authors publish it for C programs: fixed records in a tar.gz, without pickle.

The archive is never unpacked to disk: only the six record files are read from it.
"""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from parbench import files
from parbench.data import download
from parbench.data.images import LabeledImages
from parbench.data.source import Source
from parbench.errors import ParbenchError

if TYPE_CHECKING:
    import numpy as np

FOLDER = "cifar-10-batches-bin"
TRAIN = [f"data_batch_{number}.bin" for number in range(1, 6)]
TEST = "test_batch.bin"
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
RECORD = 1 + 3 * 32 * 32  # bytes: the label, then the red, green and blue planes
WANTED = (
    "give the official cifar-10-binary.tar.gz, the form for C programs and not unpacked (not "
    "cifar-10-python.tar.gz)"
)


class Kind(Source, frozen=True):
    """The archive, from a mirror or from a path on this machine."""

    kind: Literal["cifar10-binary"]
    urls: list[Annotated[str, Field(pattern=download.ADDRESS)]] = Field(
        default=[],
        min_length=1,
        description="mirrors of the archive (http://, https:// or file:///, without a user name), "
        "tried in turn; digest.json names the first as the source, whichever was used",
    )
    size: int = Field(ge=1, description="size of the archive in bytes")
    sha256: str = Field(
        pattern=r"^[0-9a-f]{64}$",
        description="SHA-256 of the archive: 64 hexadecimal digits, in lower case",
    )
    path: str = Field(
        default="",
        min_length=1,
        description="path of a local archive, instead of a download",
    )

    @model_validator(mode="after")
    def _has_a_source(self) -> Kind:
        if not (self.urls or self.path):
            raise ValueError(
                "the key 'urls' is missing; add it, or path. `urls`: mirrors of the archive"
            )
        return self

    def read(self) -> LabeledImages:
        """Verify the archive and read its records."""
        import numpy as np

        archive = self._archive()
        try:
            tables = _read(archive)
        except (tarfile.TarError, KeyError, ValueError, OSError, EOFError, zlib.error) as error:
            raise ParbenchError(
                f"{archive}: not CIFAR-10's binary archive ({error}); {WANTED}"
            ) from None
        images, labels = {}, {}
        for name, table in tables.items():
            images[name] = table[:, 1:].reshape(-1, 3, 32, 32)
            labels[name] = table[:, 0].astype(np.int64)
        return LabeledImages(
            train_images=np.concatenate([images[name] for name in TRAIN]),
            train_labels=np.concatenate([labels[name] for name in TRAIN]),
            test_images=images[TEST],
            test_labels=labels[TEST],
            classes=CLASSES,
            source=self.path or self.urls[0],
            source_sha256=self.sha256,
        )

    def _archive(self) -> Path:
        if not self.path:
            return download.fetch(self.urls, self.size, self.sha256)
        path = files.user_path(self.path, "path")
        try:
            return download.verify(path, self.size, self.sha256)
        except ValueError as reason:
            raise ParbenchError(
                f"{path}: {reason}; {WANTED}, or leave `path` out to download it"
            ) from None


def _read(path: Path) -> dict[str, np.ndarray]:
    """Return the records of the archive's six files, uint8 [N, RECORD] each, by file name."""
    import numpy as np

    names = {f"{FOLDER}/{name}": name for name in [*TRAIN, TEST]}
    tables = {}
    with tarfile.open(path, "r|gz") as archive:
        for member in archive:
            if member.name in names and member.isfile():
                file = archive.extractfile(member)
                assert file is not None
                content = file.read()
                table = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
                if not len(table) or table[:, 0].max() >= len(CLASSES):
                    raise ValueError(f"{member.name} has no records of ten classes")
                tables[names[member.name]] = table
    if missing := sorted(set(names.values()) - set(tables)):
        raise ValueError(f"{missing[0]} is missing")
    return tables
