"""Download, verify and convert one dataset, from an entry of config.yaml's ``datasets`` to
data.safetensors and digest.json.

Neither downloads nor local files are trusted: size and SHA-256 are checked before a file is opened,
and no pickle is read. The same source gives the same bytes on every machine.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parbench import files
from parbench.cache import print_message
from parbench.data.images import LabeledImages
from parbench.data.texts import Texts
from parbench.errors import ParbenchError, sentence

if TYPE_CHECKING:
    import numpy as np


def prepare(name: str, spec: dict[str, Any], out: Path, digest: Path) -> None:
    """Write the dataset ``name``, whose entry is ``spec``, to ``out`` and ``digest``."""
    from parbench.data import source  # needs pydantic, which may be missing

    kind = source.load(spec["kind"])
    source_facts = {"dataset": name, "kind": spec["kind"], "made_from": source.made_from(spec)}
    description = _convert(source_facts, kind(**spec).read(), out, digest)
    for note in description.get("notes", []):
        print_message(f"{name}: {note}")
    print_message(
        f"{name}: {description['train']:,} training and {description['test']:,} test "
        f"{kind.HOLDS} in {out}"
    )


def _convert(
    source_facts: dict[str, str], read: LabeledImages | Texts, out: Path, digest: Path
) -> dict[str, Any]:
    """Write data.safetensors to ``out``, then its description, which begins with ``source_facts``,
    to ``digest``; return the description.

    Both are written to temporary files and renamed. The description is written last, so that a
    mismatch with the data is always detected.
    """
    metadata = read.metadata()
    stored = {"classes": read.classes, **metadata}
    with files.atomic_path(out) as temporary:
        _write_safetensors(
            temporary, read.tensors(), {key: json.dumps(value) for key, value in stored.items()}
        )
        sha256 = files.sha256_file(temporary)
    description = {
        "schema_version": 1,
        **source_facts,
        "sha256": sha256,
        "source": read.source,
        "source_sha256": read.source_sha256,
        "train": len(read.train_labels),
        "test": len(read.test_labels),
        "classes": read.classes,
        **read.described(),
        **metadata,
    }
    files.write_json(digest, description)
    return description


def _write_safetensors(
    path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, Any]
) -> None:
    """Write a safetensors file of int64, int32 and uint8 tensors, the same bytes every time.

    The safetensors library is not used, since it keeps metadata in a hash map, whose order differs
    from run to run.
    """
    import numpy as np

    dtypes = {"int64": "I64", "int32": "I32", "uint8": "U8"}
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    # Tensors with wide elements first, so that each is aligned.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    for name, array in ordered:
        start, end = end, end + array.nbytes
        header[name] = {
            "dtype": dtypes[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in ordered:
            file.write(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data)


def local_digest(spec: dict[str, Any], kept: Path, digest: Path) -> str | None:
    """Return the SHA-256 of a local folder's current content; None if the entry pins its source.

    Reading all images takes long, so the file ``kept`` caches the result until an image is another
    file or has another size or time. If the folder is missing, the result comes from ``digest``,
    the description of the converted data; None if that is missing, too. Raises ParbenchError if the
    folder cannot be read.
    """
    from parbench.data import source

    entry = source.load(spec["kind"])(**spec)
    root = entry.folder()
    if root is None:
        return None
    try:
        if not root.exists():
            return (
                files.read_record(digest, "source_sha256")["source_sha256"]
                if digest.is_file()
                else None
            )
        stamp = files.digest([_stamp(path) for path in entry.images()])
        cached = files.read_record(kept, "stamp", "sha256") if kept.is_file() else {"stamp": None}
        if cached["stamp"] != stamp:
            cached = {"stamp": stamp, "sha256": entry.identify()}
            files.write_json(kept, cached)
    except OSError as error:
        raise ParbenchError(sentence(error)) from None
    return cached["sha256"]


def _stamp(path: Path) -> list[str | int]:
    """Return values that change with the bytes of a file, or with the links that lead to it."""
    status = path.stat()
    changes = status.st_mtime_ns, status.st_ctime_ns  # programs can set the modification time
    return [str(path), status.st_ino, status.st_size, *changes]
