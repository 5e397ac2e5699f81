"""CIFAR-10 as its authors publish it for C programs: fixed records in a tar.gz, without pickle.

The archive is never unpacked to disk: the members that it must have are checked and read.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from pydantic import Field, model_validator

from parbench import files
from parbench.data import download
from parbench.data.source import Images, Source, local_path
from parbench.errors import ParbenchError

FOLDER = "cifar-10-batches-bin"
TRAIN = [f"data_batch_{number}.bin" for number in range(1, 6)]
TEST = "test_batch.bin"
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
RECORDS = 10_000  # in each of the six files
RECORD = 1 + 3 * 32 * 32  # bytes: the label, then the red, green and blue planes


class Kind(Source):
    """The archive from a mirror or on this machine, or the folder unpacked from it."""

    kind: Literal["cifar10-binary"]
    urls: list[Annotated[str, Field(pattern=download.ADDRESS)]] = Field(
        default=[],
        min_length=1,
        description="mirrors of the archive (http://, https:// or file:///, without a user name), "
        "tried in turn; the first stands as the source in digest.json, whichever answered",
    )
    size: int = Field(ge=1, description="size of the archive in bytes")
    sha256: str = Field(
        pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the archive, in lower-case hexadecimal"
    )
    path: str = Field(
        default="",
        min_length=1,
        description=f"instead of a download: the archive on this machine, or the folder {FOLDER} "
        "unpacked from it",
    )

    @model_validator(mode="after")
    def _has_a_source(self) -> Kind:
        if not (self.urls or self.path):
            raise ValueError("the key 'urls' (mirrors of the archive) is missing; add it, or path")
        return self

    def identify(self) -> str | None:
        """The archive's SHA-256; of an unpacked folder, one over its files'."""
        path = local_path(self.path)
        if not self.path or not path.is_dir():
            return self.sha256
        records = [path / name for name in [*TRAIN, TEST]]
        if not all(each.is_file() for each in records):
            return None
        return files.digest([[each.name, files.sha256_file(each)] for each in records])

    def read(self) -> Images:
        """Read the records of the archive or the folder."""
        path = local_path(self.path) if self.path else None
        if path is None:
            path = download.fetch(self.urls, self.size, self.sha256)
        elif not path.is_dir():
            try:
                download.verify(path, self.size, self.sha256)
            except ValueError as reason:
                raise ParbenchError(
                    f"{path}: {reason}; give the official cifar-10-binary.tar.gz, the folder "
                    f"{FOLDER} unpacked from it, or leave `path` out to download it"
                ) from None
        contents = _read_folder(path) if path.is_dir() else _read_archive(path)
        return _images(contents, path, self.path or self.urls[0], self.identify())


def _read_folder(folder: Path) -> dict[str, bytes]:
    """The files of an unpacked folder, by name."""
    for name in [*TRAIN, TEST]:
        if not (folder / name).is_file():
            raise ParbenchError(
                f"{folder}: it has no file {name}; `path` must be the folder {FOLDER} "
                "itself, unpacked from cifar-10-binary.tar.gz"
            )
        _check_size(folder / name, (folder / name).stat().st_size)
    return {name: (folder / name).read_bytes() for name in [*TRAIN, TEST]}


class _Capped:
    """A readable stream that refuses to give more than ``limit`` bytes: no archive is a bomb."""

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self._stream, self._left = stream, limit

    def read(self, count: int) -> bytes:
        block = self._stream.read(count)
        self._left -= len(block)
        if self._left < 0:
            raise tarfile.ReadError("it unpacks to more than it should hold")
        return block


def _read_archive(path: Path) -> dict[str, bytes]:
    """The six files of a verified archive, by name; no other member is looked at."""
    limit = (len(TRAIN) + 1) * RECORDS * RECORD + (1 << 20)  # with headers, texts and padding
    contents = {}
    try:
        with (
            gzip.open(path) as stream,
            tarfile.open(fileobj=_Capped(stream, limit), mode="r|") as archive,
        ):
            for member in archive:
                folder, _, name = member.name.rpartition("/")
                if folder != FOLDER or name not in [*TRAIN, TEST]:
                    continue
                if not member.isreg() or member.issparse():
                    raise ParbenchError(f"{path}: {member.name} is not a plain file")
                _check_size(path / member.name, member.size)
                contents[name] = archive.extractfile(member).read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ParbenchError(f"{path}: not a readable tar.gz archive ({error})") from None
    if missing := [name for name in [*TRAIN, TEST] if name not in contents]:
        raise ParbenchError(f"{path}: {FOLDER}/{missing[0]} is missing from the archive")
    return contents


def _check_size(path: Path, size: int) -> None:
    """ParbenchError when a file of ``size`` bytes cannot hold exactly RECORDS records."""
    if size != RECORDS * RECORD:
        raise ParbenchError(
            f"{path}: it has {size:,} bytes; {RECORDS:,} records of {RECORD} bytes are "
            f"{RECORDS * RECORD:,}"
        )


def _images(contents: dict[str, bytes], place: Path, source: str, sha256: str) -> Images:
    """The dataset from the bytes of its files, by name."""
    import numpy as np

    images, labels = {}, {}
    for name in [*TRAIN, TEST]:
        table = np.frombuffer(contents[name], dtype=np.uint8).reshape(RECORDS, RECORD)
        images[name] = table[:, 1:].reshape(RECORDS, 3, 32, 32)
        labels[name] = table[:, 0].astype(np.int64)
        if (wrong := labels[name] >= len(CLASSES)).any():
            record = int(wrong.argmax())
            raise ParbenchError(
                f"{place}/{name}: record {record} has the label {labels[name][record]}; "
                "CIFAR-10 has 0 to 9"
            )
    return Images(
        train_images=np.concatenate([images[name] for name in TRAIN]),
        train_labels=np.concatenate([labels[name] for name in TRAIN]),
        test_images=images[TEST],
        test_labels=labels[TEST],
        classes=CLASSES,
        source=source,
        source_sha256=sha256,
    )
