"""Read and write files, and compute digests.

Files are written under another name, synced and renamed, so that none is ever partial, not even
after a power failure.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import hashlib
import json
import math
import os
import re
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parbench.errors import ParbenchError

# Errors of fsync on a folder if the file system does not support it, as on some network disks.
NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
# Errors of a disk that may occur while a file is written.
OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def rename_durably(source: Path, target: Path) -> None:
    """Rename a file or a folder so that a power failure leaves ``target`` complete or unchanged.

    The content is on the disk before the rename, the new name when this returns. Raises OSError.
    """
    if source.is_dir():
        sync_tree(source)
    else:
        _sync(source)
    os.replace(source, target)
    _sync_folder(target.parent)


def sync_tree(folder: Path) -> None:
    """Wait until everything written below ``folder`` is on the disk. Raises OSError.

    Syncs the whole file system at once: an environment or an image has 40,000 files.
    """
    command = ["sync", "--file-system", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(errno.EIO, done.stderr.strip(), str(folder))


def make_folder(path: Path) -> None:
    """Make a folder and its parents, unless they exist, so that they survive a power failure."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        _sync_folder(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path: Path) -> None:
    try:
        _sync(path)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise


def user_path(text: str, where: str = "") -> Path:
    """Return the path that a user wrote, with ~ and $VARIABLES expanded as by a shell.

    ``where`` it was written, if that is not the command line: a key with its file, or a variable.
    Raises ParbenchError, beginning with it, for a user or a variable that does not exist, and for a
    name that is not UTF-8, which a JSON file could not contain.
    """
    where = where and f"{where}: "
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ParbenchError(
            f"{where}{os.fsencode(text)}: this name is not UTF-8; rename the file or folder"
        ) from None
    path = os.path.expanduser(os.path.expandvars(text))
    if path.startswith("~"):
        user = path.split("/")[0]
        raise ParbenchError(
            f"{where}{text}: the home folder of {user} is unknown; write the full path"
        )
    if unknown := re.search(r"\$(\w+|\{[^}]*\})", path):
        raise ParbenchError(
            f"{where}{text}: the environment has no variable {unknown[0]}; set it, or write the "
            "full path"
        )
    return Path(path)


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``: renamed to it durably, or deleted on failure."""
    path = Path(path)
    if path.is_dir():
        raise ParbenchError(f"{path}: is a folder, but a file is written there; move it away")
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        yield temporary
        # safetensors makes files private, but results get the permissions of any new file.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        rename_durably(temporary, path)
    except Exception as error:
        if number := _of_disk(error):
            raise OSError(number, os.strerror(number), str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _of_disk(error: Exception) -> int | None:
    """Return the errno of a disk error in ``error``, which names no file; None for other errors.

    safetensors, which is in Rust, raises its own errors: "I/O error: ... (os error 28)".
    """
    if isinstance(error, OSError):
        number = None if error.filename else error.errno
    else:
        found = re.search(r"\(os error (\d+)\)", str(error))
        number = found and int(found[1])
    return number if number in OF_DISK else None


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write ``content`` to ``path``; it is on the disk when this returns.

    A reader sees either the previous file or the complete new one.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def json_text(value: object) -> str:
    """Return the text of a JSON file with ``value``. Raises ValueError for NaN and infinity."""
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def write_json(path: str | os.PathLike[str], value: object) -> None:
    """Write ``value`` as JSON, atomically. Raises ValueError for NaN and infinity."""
    write_atomically(path, json_text(value))


def read_text(path: str | os.PathLike[str], name: str | None = None, fix: str = "") -> str:
    """Return the text of a UTF-8 file, without a byte-order mark, with newlines as line ends.

    Raises ParbenchError, which calls the file ``name`` (by default its path) and names the line and
    ``fix``.
    """
    name = name or str(path)
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        if os.path.islink(path):
            target = os.readlink(path)
            sentence = f"a link to {target}, which does not exist; correct or delete the link"
            raise ParbenchError(f"{name}: {sentence}") from None
        raise ParbenchError(f"{name}: no such file") from None
    except IsADirectoryError:
        raise ParbenchError(f"{name}: is a folder; name a file, or move it away") from None
    except OSError as error:
        fix = f"; {fix}" if fix else "; name a file that you may read"
        raise ParbenchError(f"{name}: cannot be read ({error.strerror}){fix}") from None
    return text_of(content, name, fix)


def text_of(content: bytes, name: str, fix: str = "") -> str:
    """Return a file's bytes as text, as ``read_text`` does; errors call the file ``name``."""
    for mark, encoding in _OTHER_MARKS:
        if content.startswith(mark):
            raise ParbenchError(f"{name}: the file is in {encoding}; {_SAVE_AS_UTF_8}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start : error.start + 1]
        problem = f"byte 0x{byte.hex()} is not UTF-8 (in Latin-1: {byte.decode('latin-1')})"
        before = error.object[: error.start].decode()
    else:
        before, found, _ = text.partition("\0")
        if not found:
            return _with_newlines(text)
        problem = "a NUL character: not a text file, or text in UTF-16"
    line = _with_newlines(before).count("\n") + 1
    raise ParbenchError(f"{name}, line {line}: {problem}; {fix or _SAVE_AS_UTF_8}")


# Names of cells, studies, datasets and images, which are also names of files and folders.
FILE_NAME = r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,199}"

# UTF-32 first: its byte-order mark begins with that of UTF-16.
_OTHER_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_SAVE_AS_UTF_8 = (
    'save it as UTF-8 (Excel: "CSV UTF-8"; PowerShell: -Encoding utf8; else: iconv -f X -t UTF-8)'
)


def _with_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


DELETE_AND_RERUN = "delete it and run again"  # the fix for files that a run makes again


def read_json(path: str | os.PathLike[str], fix: str = DELETE_AND_RERUN) -> Any:
    """Return the content of a JSON file, in which NaN and infinity are not allowed.

    Raises ParbenchError, which names the file, if it is missing, invalid or unreadable.
    """
    text = read_text(path, fix=fix)
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=_finite)
        # "\ud800" is valid JSON, but is not text that can be written or shown.
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        where, problem = f"{path}, line {error.lineno}", error.msg if text else "it is empty"
    except (ValueError, RecursionError) as error:
        where, problem = str(path), str(error)
    else:
        return value
    raise ParbenchError(f"{where}: not valid JSON: {problem}; {fix}")


def read_record(path: str | os.PathLike[str], *keys: str) -> Any:
    """Return the JSON object that a run wrote to a file; its reader states the object's type.

    Raises ParbenchError as ``read_json`` does, and if the object lacks one of ``keys``.
    """
    value = read_json(path)
    missing = [key for key in keys if not isinstance(value, dict) or key not in value]
    if missing or not isinstance(value, dict):
        problem = f"without {', '.join(missing)}" if missing else "not an object"
        raise ParbenchError(f"{path}: not what a run writes there ({problem}); {DELETE_AND_RERUN}")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def canonical_json(value: object) -> str:
    """Return JSON with sorted keys and without blanks: equal values give equal strings."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: object) -> str:
    """Return the hexadecimal SHA-256 of the canonical JSON of ``value``."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
