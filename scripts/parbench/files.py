"""Files and digests. Files are written under another name and renamed, so none is ever partial."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parbench.errors import ParbenchError


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path beside ``path``: renamed to it at the end, deleted on failure."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        yield temporary
        # safetensors makes files private; give results the permissions of any new file.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: str | os.PathLike, content: str | bytes) -> None:
    """Write ``content`` to ``path`` so that a reader sees the old file or the whole new one."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Write ``value`` as JSON, atomically. Raises ValueError for NaN and infinity."""
    write_atomically(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: str | os.PathLike) -> Any:
    """Read a JSON file. Raises ParbenchError, naming it, if it is missing, broken or unreadable."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ParbenchError(f"{path}: no such file") from None
    except OSError as error:
        raise ParbenchError(
            f"{path}: cannot be read ({error.strerror}); it must be a file that you may read: "
            "mend or delete it"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParbenchError(f"{path}: not valid JSON ({error}); delete it and run again") from None


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and without blanks: equal values give equal strings."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """Return the hexadecimal SHA-256 of the canonical JSON of ``value``."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sha256_file(path: str | os.PathLike) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
