"""Download, verify and convert one dataset: an entry of config.yaml's ``datasets`` table in,
data.safetensors and digest.json out.

Nothing that was downloaded or lies in somebody's folder is trusted: sizes and SHA-256 are checked
before a file is opened, archives are read by an exact list of members and never unpacked to disk,
and no pickle is read. The same source gives the same bytes on every machine.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import io
import json
import math
import os
import signal
import struct
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import jsonschema
import numpy as np
import yaml

import download
import files
import unbundle
from errors import ParbenchError, run_main
from printable import unsafe

# Raised when the bytes that come out for the same source change: datasets are then converted again,
# and their cells trained again. Other changes of this file concern nobody's numbers.
CONVERSION = 1

SCHEMA = Path(__file__).resolve().parent.parent / "rules" / "schemas" / "dataset.schema.yaml"


@dataclass(frozen=True)
class Images:
    """A dataset as its source gives it: images uint8 [N, 3, H, W], labels int64 [N].

    ``source`` says in words where it came from, ``source_sha256`` what bytes that was.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: list[str]
    source: str
    source_sha256: str


def local_path(spec: dict) -> Path:
    """Where a local source lies; a ~ that is nobody's home folder stands for itself."""
    return Path(os.path.expanduser(spec["path"]))


def demand_memory(needed: int, what: str) -> None:
    """Raise ParbenchError when ``what``, of ``needed`` bytes, is more than the machine can hold."""
    if needed > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise ParbenchError(
            f"{what} are {needed:,} bytes decoded, more than this machine's memory; "
            "use smaller or fewer images"
        )


# ---- CIFAR-10, binary version --------------------------------------------------------------------

CIFAR_FOLDER = "cifar-10-batches-bin"
CIFAR_TRAIN = [f"data_batch_{number}.bin" for number in range(1, 6)]
CIFAR_TEST = "test_batch.bin"
CIFAR_TEXTS = ("batches.meta.txt", "readme.html")
CIFAR_TEXT_LIMIT = 4096  # bytes
CIFAR_CLASSES = [
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
]
CIFAR_RECORDS = 10_000  # in each of the six files
CIFAR_RECORD = 1 + 3 * 32 * 32  # bytes: the label, then the red, green and blue planes


def identify_cifar10(spec: dict) -> str | None:
    """SHA-256 of what ``spec`` names: of the archive, or over an unpacked folder's files."""
    if "path" in spec:
        path = local_path(spec)
        if path.is_dir():
            names = [*CIFAR_TRAIN, CIFAR_TEST]
            if not all((path / name).is_file() for name in names):
                return None
            return files.digest([[name, files.sha256_file(path / name)] for name in names])
    return spec["sha256"]


def read_cifar10(spec: dict, records: int = CIFAR_RECORDS) -> Images:
    """CIFAR-10 from a local folder, a local archive or a mirror. ``records`` in each file."""
    source = spec.get("path") or spec["urls"][0]
    if "path" in spec:
        path = local_path(spec)
        if path.is_dir():
            return read_cifar_folder(path, source, records)
        try:
            download.verified(path, spec["size"], spec["sha256"])
        except download.MirrorError as reason:
            raise ParbenchError(
                f"{path}: {reason}; give the official cifar-10-binary.tar.gz, the folder "
                f"{CIFAR_FOLDER} unpacked from it, or leave `path` out to download it"
            ) from None
    else:
        path = download.fetch(spec["urls"], spec["size"], spec["sha256"])
    blobs = read_cifar_archive(path, records)
    return cifar_images(blobs, path, records, source, spec["sha256"])


def read_cifar_folder(folder: Path, source: str, records: int) -> Images:
    """An unpacked ``cifar-10-batches-bin``: its structure is checked, its digest recorded."""
    blobs = {}
    for name in [*CIFAR_TRAIN, CIFAR_TEST]:
        path = folder / name
        if not path.is_file():
            raise ParbenchError(
                f"{folder}: it has no file {name}; `path` must be the folder {CIFAR_FOLDER} "
                "itself, unpacked from cifar-10-binary.tar.gz"
            )
        check_record_size(path, path.stat().st_size, records)
        blobs[name] = path.read_bytes()
    names = folder / CIFAR_TEXTS[0]
    if names.is_file() and names.stat().st_size <= CIFAR_TEXT_LIMIT:
        blobs[CIFAR_TEXTS[0]] = names.read_bytes()
    pairs = [[name, hashlib.sha256(blobs[name]).hexdigest()] for name in [*CIFAR_TRAIN, CIFAR_TEST]]
    return cifar_images(blobs, folder, records, source, files.digest(pairs))


class CappedReader:
    """A readable stream that refuses to give more than ``limit`` bytes: no archive is a bomb."""

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self._stream, self._left = stream, limit

    def read(self, count: int) -> bytes:
        """Up to ``count`` bytes; tarfile.ReadError beyond the limit."""
        block = self._stream.read(count)
        self._left -= len(block)
        if self._left < 0:
            raise tarfile.ReadError("it unpacks to more than it should hold")
        return block


def read_cifar_archive(path: Path, records: int) -> dict[str, bytes]:
    """The files of a verified archive, by base name, in memory: nothing is unpacked to disk.

    Each member must be on the list of what CIFAR-10 holds, once, a plain file of the right size.
    """
    sizes = dict.fromkeys([*CIFAR_TRAIN, CIFAR_TEST], records * CIFAR_RECORD)
    limit = sum(sizes.values()) + (1 << 20)  # headers, texts and the padding of a tape record
    blobs: dict[str, bytes] = {}
    try:
        with (
            gzip.open(path) as stream,
            tarfile.open(fileobj=CappedReader(stream, limit), mode="r|") as archive,
        ):
            for member in archive:
                # The standard library's own guard too: absolute names, .., links, devices.
                if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and Debian's 3.11.2
                    tarfile.data_filter(member, ".")
                if member.name == CIFAR_FOLDER and member.isdir():
                    continue
                name = check_member(path, member, sizes, blobs)
                blobs[name] = archive.extractfile(member).read()
    except getattr(tarfile, "FilterError", tarfile.TarError) as error:
        raise ParbenchError(f"{path}: a member is refused: {error}") from None
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ParbenchError(f"{path}: not a readable tar.gz archive ({error})") from None
    if missing := [name for name in sizes if name not in blobs]:
        raise ParbenchError(f"{path}: {CIFAR_FOLDER}/{missing[0]} is missing from the archive")
    return blobs


def check_member(path: Path, member: tarfile.TarInfo, sizes: dict, seen: dict) -> str:
    """The base name of an expected member; ParbenchError for any other."""
    folder, _, name = member.name.rpartition("/")
    if folder != CIFAR_FOLDER or not (name in sizes or name in CIFAR_TEXTS):
        raise ParbenchError(f"{path}: CIFAR-10 has no member {member.name!r}")
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
        raise ParbenchError(f"{path}: the member {member.name!r} is not a plain file")
    if name in seen:
        raise ParbenchError(f"{path}: the member {member.name!r} stands in it twice")
    if name in CIFAR_TEXTS and member.size > CIFAR_TEXT_LIMIT:
        raise ParbenchError(f"{path}: the member {member.name!r} has {member.size:,} bytes")
    if name in sizes and member.size != sizes[name]:
        raise ParbenchError(
            f"{path}: the member {member.name!r} has {member.size:,} bytes, not {sizes[name]:,}"
        )
    return name


def check_record_size(path: Path, size: int, records: int) -> None:
    """ParbenchError when a file of ``size`` bytes cannot hold exactly ``records`` records."""
    if size != records * CIFAR_RECORD:
        raise ParbenchError(
            f"{path}: it has {size:,} bytes; {records:,} records of {CIFAR_RECORD} bytes are "
            f"{records * CIFAR_RECORD:,}"
        )


def parse_records(blob: bytes, place: str, records: int) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [records, 3, 32, 32] and labels int64 [records] of one file's bytes."""
    check_record_size(Path(place), len(blob), records)
    table = np.frombuffer(blob, dtype=np.uint8).reshape(records, CIFAR_RECORD)
    labels = table[:, 0].astype(np.int64)
    if (wrong := labels >= len(CIFAR_CLASSES)).any():
        record = int(wrong.argmax())
        raise ParbenchError(
            f"{place}: record {record} has the label {labels[record]}; CIFAR-10 has 0 to 9"
        )
    return table[:, 1:].reshape(records, 3, 32, 32), labels


def cifar_images(
    blobs: dict[str, bytes], place: Path, records: int, source: str, source_sha256: str
) -> Images:
    """The dataset from the bytes of its files, by base name."""
    text = blobs.get(CIFAR_TEXTS[0])
    if text is not None and (names := text.decode(errors="replace").split()) != CIFAR_CLASSES:
        raise ParbenchError(
            f"{place}/{CIFAR_TEXTS[0]}: it names the classes {names[:20]}, "
            f"CIFAR-10 has {CIFAR_CLASSES}"
        )
    parts = [parse_records(blobs[name], f"{place}/{name}", records) for name in CIFAR_TRAIN]
    test_images, test_labels = parse_records(blobs[CIFAR_TEST], f"{place}/{CIFAR_TEST}", records)
    return Images(
        train_images=np.concatenate([images for images, _ in parts]),
        train_labels=np.concatenate([labels for _, labels in parts]),
        test_images=test_images,
        test_labels=test_labels,
        classes=CIFAR_CLASSES,
        source=source,
        source_sha256=source_sha256,
    )


# ---- scikit-learn's digits -----------------------------------------------------------------------

# Over the images and the labels, both as bytes: whatever release of scikit-learn brings them.
DIGITS_SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
DIGITS_TEST = 360


def identify_digits(spec: dict) -> str | None:
    """The pinned SHA-256 of scikit-learn's arrays."""
    return DIGITS_SHA256


def read_digits(spec: dict) -> Images:
    """1,797 handwritten digits, 8x8 with values 0..16, brought to the shape of CIFAR-10.

    Enlarged four times by linear interpolation, the values 0..255, the three channels equal. 360
    images, the same share of every class, are the test set: those whose index has the smallest
    hashes, so that the split never depends on the random stream of a NumPy release.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ParbenchError(
            "dataset kind digits: scikit-learn is not installed; `pip install scikit-learn`"
        ) from None
    bunch = load_digits()
    grey, labels = bunch.images.astype(np.uint8), bunch.target.astype(np.int64)
    found = hashlib.sha256(grey.tobytes() + labels.astype(np.uint8).tobytes()).hexdigest()
    if found != DIGITS_SHA256 or not np.array_equal(grey, bunch.images):
        raise ParbenchError(
            f"scikit-learn's load_digits: its SHA-256 is {found}, {DIGITS_SHA256} is expected; "
            "install another release of scikit-learn (1.4 and later are known to fit)"
        )
    large = enlarged(grey)
    images = np.repeat(large[:, None], 3, axis=1)
    test = stratified(labels, DIGITS_TEST)
    return Images(
        train_images=images[~test],
        train_labels=labels[~test],
        test_images=images[test],
        test_labels=labels[test],
        classes=[str(name) for name in bunch.target_names],
        source="scikit-learn load_digits",
        source_sha256=found,
    )


def enlarged(grey: np.ndarray) -> np.ndarray:
    """uint8 [N, 8, 8] of 0..16 -> uint8 [N, 32, 32] of 0..255, bilinear.

    Repeating pixels would leave every 4x4 patch flat, and a transformer that sees patches of that
    size with nothing to tell them by. In whole numbers, so that no library's rounding matters.
    """
    eighths = np.zeros((32, 8), np.int64)
    for at in range(32):
        # The centre of pixel `at` lies at (at + 1/2) / 4 - 1/2 on the small image.
        left, rest = divmod(2 * at - 3, 8)
        eighths[at, max(left, 0)] += 8 - rest
        eighths[at, min(left + 1, 7)] += rest
    sums = np.einsum("ai,nij,bj->nab", eighths, grey.astype(np.int64), eighths)  # 0..16 * 64
    return ((sums * 255 + 512) // 1024).astype(np.uint8)


def stratified(labels: np.ndarray, count: int) -> np.ndarray:
    """A mask, bool [N], of ``count`` samples with each class's share of them.

    Shares that are not whole are rounded so that they add up (largest remainder).
    """
    sizes = np.bincount(labels)
    shares, remainders = sizes * count // len(labels), sizes * count % len(labels)
    for label in sorted(range(len(sizes)), key=lambda at: -remainders[at])[: count - shares.sum()]:
        shares[label] += 1
    mask = np.zeros(len(labels), dtype=bool)
    for label, share in enumerate(shares):
        members = np.flatnonzero(labels == label)
        hashes = [hashlib.sha256(b"parbench digits %d" % index).digest() for index in members]
        mask[members[sorted(range(len(members)), key=hashes.__getitem__)[:share]]] = True
    return mask


# ---- Images drawn at random ----------------------------------------------------------------------


def identify_synthetic(spec: dict) -> str | None:
    """SHA-256 of what is drawn, as its entry states it."""
    return files.digest(["synthetic", spec])


def read_synthetic(spec: dict) -> Images:
    """Bytes drawn at random, in place of images; sample i belongs to the class i modulo classes."""
    classes, side = spec["classes"], spec["image_size"]
    for key in ("train_samples", "test_samples"):
        if spec[key] < classes:
            raise ParbenchError(
                f"dataset kind synthetic: {key} {spec[key]} are fewer than the {classes} classes; "
                f"ask for {classes} or more"
            )
    count = spec["train_samples"] + spec["test_samples"]
    demand_memory(
        count * 3 * side * side, f"dataset kind synthetic: {count:,} images of {side}x{side}"
    )
    drawn = {}
    for part, key in enumerate(("train_samples", "test_samples")):
        # The raw stream of a bit generator is promised to stay as it is; methods that draw
        # numbers of a range from it are not.
        stream = np.random.PCG64(np.random.SeedSequence([spec["seed"], part]))
        shape = (spec[key], 3, side, side)
        words = stream.random_raw(-(-math.prod(shape) // 8)).astype("<u8", copy=False)
        drawn[key] = words.view(np.uint8)[: math.prod(shape)].reshape(shape)
    return Images(
        train_images=drawn["train_samples"],
        train_labels=np.arange(spec["train_samples"]) % classes,
        test_images=drawn["test_samples"],
        test_labels=np.arange(spec["test_samples"]) % classes,
        classes=[str(at) for at in range(classes)],
        source=f"drawn at random, seed {spec['seed']}",
        source_sha256=identify_synthetic(spec),
    )


# ---- A folder of images --------------------------------------------------------------------------

# Formats whose decoders are simple and common. Pillow may try no other, whatever a file's name.
IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm"}
IMAGE_FORMATS = ["PNG", "JPEG", "BMP", "WEBP", "PPM"]
IMAGE_MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}  # all 8 bits a channel
IMAGE_PIXELS = 4096 * 4096  # more is a bomb: a small file that decodes to gigabytes
IMAGE_BYTES = 1 << 27
CHUNK = 64  # images a thread takes at a time


def identify_image_folder(spec: dict) -> str | None:
    """SHA-256 over the relative names and digests of all images; None when the folder is gone."""
    root = local_path(spec)
    if not root.is_dir():
        return None
    _, members = list_images(root)
    with download.progress("compare", len(members), "files") as advance:
        digests = [
            digest
            for chunk in in_threads(members, lambda member: files.sha256_file(member[2]), advance)
            for digest in chunk
        ]
    return folder_digest(root, members, digests)


def folder_digest(root: Path, members: list, digests: list[str]) -> str:
    """SHA-256 over (relative name, SHA-256) of every image, in their order."""
    names = [path.relative_to(root).as_posix() for _, _, path in members]
    return files.digest([list(pair) for pair in zip(names, digests, strict=True)])


def in_threads(items: list, work: Callable, advance: Callable[[int], Any]) -> Iterator[list]:
    """Lists of ``work(item)`` in the items' order, from a few threads (decoding frees the GIL)."""
    chunks = [items[at : at + CHUNK] for at in range(0, len(items), CHUNK)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with ThreadPoolExecutor(min(4, cores or 1)) as pool:
        for results in pool.map(lambda chunk: [work(item) for item in chunk], chunks):
            yield results
            advance(len(results))


def read_image_folder(spec: dict) -> Images:
    """``train/<class>/*`` and ``test/<class>/*``: RGB, in order of class name, then file name."""
    root = local_path(spec)
    classes, members = list_images(root)
    first = members[0][2]
    shape = decode(first, None)[1].shape
    total = math.prod(shape) * len(members)
    demand_memory(total, f"{root}: {len(members):,} images of {shape[2]}x{shape[1]}")
    images = np.empty((len(members), *shape), dtype=np.uint8)
    digests: list[str] = []
    with download.progress("decode", len(members), "images") as advance:
        for chunk in in_threads(members, lambda item: decode(item[2], (first, shape)), advance):
            for digest, pixels in chunk:
                images[len(digests)] = pixels
                digests.append(digest)
    labels = np.array([label for _, label, _ in members], dtype=np.int64)
    test = np.array([part == "test" for part, _, _ in members])
    return Images(
        train_images=images[~test],
        train_labels=labels[~test],
        test_images=images[test],
        test_labels=labels[test],
        classes=classes,
        source=spec["path"],
        source_sha256=folder_digest(root, members, digests),
    )


def list_images(root: Path) -> tuple[list[str], list[tuple[str, int, Path]]]:
    """The classes, and (part, label, path) of every image. ParbenchError for a folder out of shape.

    Names that begin with a dot are passed over; whatever else does not belong there is an error.
    """
    if not root.is_dir():
        raise ParbenchError(f"{root}: no such folder; `path` must hold train/ and test/")
    found = {}
    for part in ("train", "test"):
        folder = root / part
        if not folder.is_dir():
            raise ParbenchError(f"{folder}: no such folder; images lie in {part}/<class>/")
        found[part] = {}
        for path in entries(root, folder):
            if not path.is_dir():
                raise ParbenchError(f"{path}: not a folder; images lie in {part}/<class>/")
            found[part][path.name] = list_class(root, path)
    for here, there in (("train", "test"), ("test", "train")):
        if missing := sorted(set(found[here]) - set(found[there])):
            raise ParbenchError(
                f"{root / there / missing[0]}: no such folder, but {root / here / missing[0]} "
                "exists; train/ and test/ must hold the same classes"
            )
    classes = sorted(found["train"])
    if len(classes) < 2:
        raise ParbenchError(f"{root / 'train'}: {len(classes)} classes; at least 2 are needed")
    members = [
        (part, label, path)
        for part in ("train", "test")
        for label, name in enumerate(classes)
        for path in found[part][name]
    ]
    return classes, members


def list_class(root: Path, folder: Path) -> list[Path]:
    """The images of one class, by name."""
    paths = entries(root, folder)
    for path in paths:
        if not path.is_file() or path.suffix.lower() not in IMAGE_SUFFIXES:
            raise ParbenchError(
                f"{path}: not an image file; only {', '.join(sorted(IMAGE_SUFFIXES))} are read"
            )
    if not paths:
        raise ParbenchError(f"{folder}: the class has no image")
    return paths


def entries(root: Path, folder: Path) -> list[Path]:
    """What lies in ``folder``, by name; ParbenchError for a link that leads out of ``root``."""
    with os.scandir(folder) as scan:
        found = sorted((entry.name, entry.is_symlink()) for entry in scan if entry.name[0] != ".")
    for name, is_link in found:
        path = folder / name
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ParbenchError(f"{os.fsencode(path)!r}: the name is not UTF-8") from None
        if "\n" in name or unsafe(name):
            raise ParbenchError(
                f"{folder}: {name!a} holds a character that cannot be shown; rename it"
            )
        if is_link and not path.resolve().is_relative_to(root.resolve()):
            raise ParbenchError(f"{path}: a link to {path.resolve()}, which is outside of {root}")
    return [folder / name for name, _ in found]


def decode(path: Path, like: tuple[Path, tuple] | None) -> tuple[str, np.ndarray]:
    """The SHA-256 of an image file, and its pixels as RGB uint8 [3, H, W].

    ``like`` is another image and its shape: a different one is an error that names both. The size
    is read from the header, before a pixel is decoded.
    """
    from PIL import Image

    try:
        if path.stat().st_size > IMAGE_BYTES:
            raise ValueError(f"the file has more than {IMAGE_BYTES:,} bytes")
        content = path.read_bytes()
        with Image.open(io.BytesIO(content), formats=IMAGE_FORMATS) as image:
            if image.width * image.height > IMAGE_PIXELS:
                raise ValueError(f"{image.width}x{image.height} pixels are too many")
            if image.mode not in IMAGE_MODES:
                raise ValueError(f"its pixels are {image.mode}; only 8 bits a channel are read")
            if like is not None and (3, image.height, image.width) != like[1]:
                raise ParbenchError(
                    f"{path}: {image.width}x{image.height} pixels, but {like[0]} has "
                    f"{like[1][2]}x{like[1][1]}; resize them all to one size first"
                )
            pixels = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except ParbenchError:
        raise
    except Exception as error:  # a decoder fed with anything raises anything
        raise ParbenchError(f"{path}: not a readable image ({error})") from None
    return hashlib.sha256(content).hexdigest(), pixels


# ---- Converting ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """One kind of source: what bytes it holds (None: it is gone), and how it is read."""

    identify: Callable[[dict], str | None]
    read: Callable[[dict], Images]


KINDS = {
    "digits": Kind(identify_digits, read_digits),
    "cifar10-binary": Kind(identify_cifar10, read_cifar10),
    "image-folder": Kind(identify_image_folder, read_image_folder),
    "synthetic": Kind(identify_synthetic, read_synthetic),
}


def check_spec(name: str, spec: Any) -> None:
    """ParbenchError, with the key and its value, when ``spec`` is not what the schema describes."""
    schema = yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    error = jsonschema.exceptions.best_match(validator.iter_errors(spec))
    if error is None:
        return
    key = ".".join(["datasets", name, *map(str, error.absolute_path)])
    message = error.message
    if "propertyNames" in error.absolute_schema_path:
        allowed = ", ".join(error.validator_value)
        message = f"kind {spec['kind']} has no key {error.instance!r}; it has {allowed}"
    raise ParbenchError(f"{key}: {message}; see rules/schemas/{SCHEMA.name}")


def local_digest(spec: dict, kept: Path, digest: Path) -> str | None:
    """SHA-256 of what a local folder holds now; None for a source that its entry pins.

    Reading a folder takes long: ``kept`` is the file that keeps the answer until a name, a size or
    a time in the folder changes. For a folder that is gone it is what ``digest``, the description
    of the converted data, says; for one that cannot be read it is the reason.
    """
    root = local_path(spec)
    try:
        if not root.is_dir():
            made = files.read_json(digest)["source_sha256"] if digest.is_file() else None
            return made if made != spec.get("sha256") else None
        stamp = folder_stamp(root)
        with contextlib.suppress(ParbenchError, KeyError, TypeError):
            known = files.read_json(kept)
            if known["stamp"] == stamp:
                return known["sha256"]
        found = KINDS[spec["kind"]].identify(spec)
        with contextlib.suppress(OSError):  # it is then asked again
            files.write_json(kept, {"stamp": stamp, "sha256": found})
        return found
    except (ParbenchError, OSError, KeyError, TypeError) as error:
        return str(error)  # a value like any other: the rule then runs, and says it


def folder_stamp(root: Path) -> str:
    """Digest of the names, sizes and times of all files below ``root``.

    60,000 files take a fifth of a second. Links are not followed: no dataset's lead outside.
    """
    found, waiting = [], [os.fspath(root)]
    while waiting:
        with os.scandir(waiting.pop()) as scan:
            for entry in scan:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    status = entry.stat(follow_symlinks=False)
                    found.append((entry.path, status.st_size, status.st_mtime_ns))
    return hashlib.sha256(repr(sorted(found)).encode()).hexdigest()


def channel_moments(images: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel of uint8 [N, 3, H, W], on the scale 0..1.

    From whole numbers, so that every machine finds the same last digit.
    """
    counts = np.zeros((3, 256), dtype=np.int64)
    for start in range(0, len(images), 1000):  # bincount works on int64: eight times the memory
        for channel in range(3):
            block = images[start : start + 1000, channel].ravel()
            counts[channel] += np.bincount(block, minlength=256)
    mean, std = [], []
    for histogram in counts.tolist():
        number = sum(histogram)
        first = sum(value * count for value, count in enumerate(histogram))
        second = sum(value * value * count for value, count in enumerate(histogram))
        mean.append(first / (255 * number))
        std.append(math.sqrt(number * second - first * first) / (255 * number))
    return mean, std


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], metadata: dict) -> None:
    """Write a safetensors file of int64 and uint8 tensors, the same bytes every time.

    By hand, because the library keeps metadata in a hash map: its order differs from run to run.
    """
    names = {"int64": "I64", "uint8": "U8"}
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    # Wide elements first, so that each is aligned.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    for name, array in ordered:
        start, end = end, end + array.nbytes
        header[name] = {
            "dtype": names[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in ordered:
            file.write(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data)


def convert(name: str, kind: str, images: Images, out: Path, digest: Path) -> dict:
    """Write data.safetensors to ``out``, then its description to ``digest``, and return that.

    Both are written aside and renamed; the description comes last, so that it never stands
    beside a file it does not describe without the difference being seen.
    """
    # Without a test image, a class would count as one that is never recognised.
    for labels, part in ((images.train_labels, "training"), (images.test_labels, "test")):
        present = set(labels.tolist())
        if missing := [c for at, c in enumerate(images.classes) if at not in present]:
            raise ParbenchError(f"{images.source}: no {part} image of the class {missing[0]!r}")
    mean, std = channel_moments(images.train_images)
    if min(std) == 0:
        raise ParbenchError(
            f"{images.source}: a channel has the same value in all training images, "
            "so that it cannot be normalised"
        )
    tensors = {
        "train_images": images.train_images,
        "train_labels": images.train_labels,
        "test_images": images.test_images,
        "test_labels": images.test_labels,
    }
    needed = sum(array.nbytes for array in tensors.values()) + (1 << 16)
    download.demand_space(out.parent, needed, "make room there")
    metadata = {"classes": images.classes, "mean": mean, "std": std}
    with files.atomic_path(out) as temporary:
        write_safetensors(
            temporary, tensors, {key: json.dumps(value) for key, value in metadata.items()}
        )
        sha256 = files.sha256_file(temporary)
    description = {
        "schema_version": 1,
        "dataset": name,
        "kind": kind,
        "sha256": sha256,
        "source": images.source,
        "source_sha256": images.source_sha256,
        "train": len(images.train_labels),
        "test": len(images.test_labels),
        "classes": images.classes,
        "image_shape": list(images.train_images.shape[1:]),
        "mean": mean,
        "std": std,
    }
    files.write_json(digest, description)
    return description


def is_there(name: str, spec: dict, out: Path, digest: Path) -> bool:
    """Whether ``out`` and ``digest`` are whole, belong together and come from this source.

    A source that has gone since does not make them worse.
    """
    if not (out.is_file() and digest.is_file()):
        return False
    try:
        found = files.read_json(digest)
    except ParbenchError:
        return False
    if not isinstance(found, dict):
        return False
    expected = {"schema_version": 1, "dataset": name, "kind": spec["kind"]}
    if any(found.get(key) != value for key, value in expected.items()):
        return False
    if found.get("sha256") != files.sha256_file(out):
        return False
    source = KINDS[spec["kind"]].identify(spec)
    return source is None or source == found.get("source_sha256")


def from_bundle(name: str, spec: dict, out: Path, digest: Path) -> dict | None:
    """The dataset as a bundle brought it, and its description; None where it did not.

    A local folder that is here and holds something else is read instead.
    """
    folder = unbundle.dataset(name, spec)
    if folder is None:
        return None
    data, described = folder / "data.safetensors", folder / "digest.json"
    found = files.read_json(described)
    if not data.is_file() or files.sha256_file(data) != found["sha256"]:
        raise ParbenchError(f"{data} is missing or damaged; {unbundle.AGAIN}")
    if not is_there(name, spec, data, described):
        return None
    download.take(name, data, out)
    files.write_json(digest, found)
    return found


def prepare(name: str, spec: dict, out: Path, digest: Path) -> None:
    """Bring the dataset ``name`` to ``out`` and ``digest``, unless it is there already."""
    check_spec(name, spec)
    try:
        with download.locked(out.parent / ".lock", f"prepares {name}"):
            if is_there(name, spec, out, digest):
                download.say(f"{name}: already there ({out})")
                return
            found = from_bundle(name, spec, out, digest)
            if found is None:
                images = KINDS[spec["kind"]].read(spec)
                found = convert(name, spec["kind"], images, out, digest)
    except OSError as error:
        raise ParbenchError(f"{error.filename or out}: {error.strerror or error}") from error
    except MemoryError:
        raise ParbenchError(f"{name}: this machine has too little memory for it") from None
    download.say(f"{name}: {found['train']:,} training and {found['test']:,} test images in {out}")


def _spec(arguments: argparse.Namespace) -> dict:
    if arguments.datasets is not None:
        return files.read_json(arguments.datasets)[arguments.name]
    try:
        return json.loads(arguments.spec)
    except json.JSONDecodeError as error:
        raise ParbenchError(f"--spec: not valid JSON ({error}): {arguments.spec}") from None


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Download, verify and convert one dataset.")
    parser.add_argument("--name", required=True, help="the dataset's key in config.yaml")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--spec", help="its entry there, as JSON")
    source.add_argument("--datasets", type=Path, help="JSON file of all entries, by key")
    parser.add_argument("--out", required=True, type=Path, help="data.safetensors to write")
    parser.add_argument("--digest", required=True, type=Path, help="digest.json to write")
    arguments = parser.parse_args()
    spec = _spec(arguments)
    # A scheduler ends a job with SIGTERM: leave as on any error, temporary files deleted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    prepare(arguments.name, spec, arguments.out, arguments.digest)


if __name__ == "__main__":
    run_main(main)
