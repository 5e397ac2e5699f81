"""Fetch a file that is pinned by size and SHA-256 from its mirrors, by pooch, into the cache."""

from __future__ import annotations

import functools
import os
import ssl
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from tqdm import tqdm

from parbench import cache, files
from parbench.cache import say
from parbench.errors import ParbenchError

# An address has no user name, which would end up in reports.
ADDRESS = r"^(https?://[^/@]+/|file:///)."
TIMEOUT = 30  # seconds without a byte, after which a mirror counts as stalled

bar = functools.partial(tqdm, mininterval=5, delay=1)  # drawn seldom: a job's output is its log


def fetch(urls: list[str], size: int, sha256: str) -> Path:
    """The path of a verified copy of a file: from the cache, or from the first mirror that has it.

    A file:// address is read where it lies. ParbenchError lists every mirror with its reason.
    """
    reasons = []
    for url in urls:
        try:
            if urlsplit(url).scheme == "file":
                local = Path(urllib.request.url2pathname(urlsplit(url).path))
                return verify(local, size, sha256)
            return _download(url, size, sha256)
        except (ValueError, OSError) as error:  # OSError: also all that requests raises
            reasons.append(f"{url}: {error}")
            say(reasons[-1])
    raise ParbenchError(
        f"no mirror gave the file with SHA-256 {sha256}:\n  " + "\n  ".join(reasons) + "\n"
        "Get it another way, then name it in its entry of config.yaml: `file:///folder/file` among "
        "its urls; a dataset's also as `path: /folder/archive.tar.gz`"
    )


def verify(path: Path, size: int, sha256: str) -> Path:
    """Return ``path`` when its size and SHA-256 are as expected; ValueError says what is not."""
    if not path.is_file():
        raise ValueError("no such file")
    if (found := path.stat().st_size) != size:
        raise ValueError(f"it has {found:,} bytes, {size:,} are expected")
    if (found := files.sha256_file(path)) != sha256:
        raise ValueError(f"it has the SHA-256 {found}, {sha256} is expected")
    return path


def _download(url: str, size: int, sha256: str) -> Path:
    """Bring the file at an http(s) address into the cache, where one that is whole stays.

    ValueError for other bytes, OSError for what the network or the disk refuses.
    """
    import pooch

    paths = ssl.get_default_verify_paths()  # of this machine, not only those of certifi
    downloader = pooch.HTTPDownloader(
        progressbar=bar(total=size, desc="download", unit="B", unit_scale=True),
        chunk_size=1 << 18,
        timeout=TIMEOUT,
        headers={"Accept-Encoding": "identity"},
        verify=os.environ.get("REQUESTS_CA_BUNDLE") or paths.cafile or paths.capath or True,
    )
    folder = cache.folder() / "downloads"
    return Path(pooch.retrieve(url, f"sha256:{sha256}", sha256, folder, downloader=downloader))
