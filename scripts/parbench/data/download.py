"""Fetch a file that is pinned by its digest from mirrors into the cache, with pooch."""

from __future__ import annotations

import functools
import hashlib
import os
import ssl
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tqdm import tqdm

from parbench import cache
from parbench.cache import print_message
from parbench.errors import ParbenchError

# An address must not contain a user name, which would end up in reports.
ADDRESS = r"^(https?://[^/@]+/|file:///)."
TIMEOUT = 30  # seconds without a byte, after which a mirror counts as stalled

bar = functools.partial(tqdm, mininterval=5, delay=1)  # slow updates, as in a log


def fetch(urls: list[str], size: int | None, known: str) -> Path:
    """Return the path of a verified copy of a file: from the cache or the first mirror that has it.

    ``known`` is its SHA-256, or its MD5 (recognized by the length) if only that is published;
    ``size`` is in bytes, None if unknown. A file:// address is used in place. If all mirrors fail,
    raises ParbenchError, which lists each with the reason.
    """
    reasons = []
    for url in urls:
        try:
            if urlsplit(url).scheme == "file":
                local = Path(urllib.request.url2pathname(urlsplit(url).path))
                return verify(local, size, known)
            return _download(url, size, known)
        except (ValueError, OSError) as error:  # OSError: includes requests' exceptions
            reasons.append(f"{url}: {error}")
            print_message(reasons[-1])
    raise ParbenchError(
        f"no mirror gave the file with {_kind(known)} {known}:\n  " + "\n  ".join(reasons) + "\n"
        "Get it another way, then name it in its entry of config.yaml: `file:///folder/file` among "
        "its urls; a dataset's also as `path: /folder/archive.tar.gz`"
    )


def verify(path: Path, size: int | None, known: str) -> Path:
    """Return ``path``. Raises ValueError, which says what differs, if size or digest is wrong."""
    if not path.is_file():
        raise ValueError(
            "it is a folder, a file is expected"
            if path.is_dir()
            else "it is not a regular file"
            if path.exists()
            else "no such file"
        )
    with open(path, "rb") as file:
        start = file.read(64)
        file.seek(0)
        if size is not None and (actual := path.stat().st_size) != size:
            raise ValueError(f"it has {actual:,} bytes, {size:,} are expected{_looks(start)}")
        digest = hashlib.file_digest(file, _kind(known).replace("-", "")).hexdigest()
    if digest != known:
        raise ValueError(f"it has the {_kind(known)} {digest}, {known} is expected{_looks(start)}")
    return path


# What a file often is instead of what was expected.
_STARTS = {
    b"<": "a web page, such as one that asks to log in",
    b"version https://git-lfs": "a pointer of Git LFS, which `git lfs pull` replaces by the file",
    b"PK\x03\x04": "a zip archive",
}


def _looks(start: bytes) -> str:
    """Return what a file looks like that has these first bytes, as the end of a message."""
    kinds = (kind for mark, kind in _STARTS.items() if start.lstrip().startswith(mark))
    kind = next(kinds, None)
    return f" (it looks like {kind})" if kind else ""


def _kind(known: str) -> str:
    return "MD5" if len(known) == 32 else "SHA-256"


def _download(url: str, size: int | None, known: str) -> Path:
    """Download the file at an http(s) address into the cache, unless a valid copy is there.

    Raises ValueError if the bytes differ, OSError if the network or the disk fails.
    """
    import pooch

    paths = ssl.get_default_verify_paths()  # this machine's certificates besides certifi's
    # pooch's annotation is a bool, but it also accepts a bar.
    progress: Any = bar(total=size, desc="download", unit="B", unit_scale=True)
    downloader: Any = pooch.HTTPDownloader(
        progressbar=progress,
        chunk_size=1 << 18,
        timeout=TIMEOUT,
        headers={"Accept-Encoding": "identity"},
        verify=os.environ.get("REQUESTS_CA_BUNDLE") or paths.cafile or paths.capath or True,
    )
    folder, algorithm = cache.folder() / "downloads", _kind(known).replace("-", "").lower()
    return Path(pooch.retrieve(url, f"{algorithm}:{known}", known, folder, downloader=downloader))
