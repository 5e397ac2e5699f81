"""Fetch a file that is pinned by size and SHA-256 from its mirrors, by pooch, into the cache."""

from __future__ import annotations

import functools
import os
import ssl
import sys
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from tqdm import tqdm

from parbench import cache, files
from parbench.errors import ParbenchError
from parbench.printable import printable

# An address has no user name, which would end up in reports.
ADDRESS = r"^(https?://[^/@]+/|file:///)."
TIMEOUT = 30  # seconds without a byte, after which a mirror counts as stalled

# A job's output goes to its log, too: there a bar is drawn seldom.
bar = functools.partial(tqdm, mininterval=0.2 if sys.stderr.isatty() else 5)


def say(message: str) -> None:
    """Print one line of progress where the log of the job goes."""
    print(printable(message), file=sys.stderr, flush=True)


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
        except ValueError as error:
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
    """Bring the file at an http(s) address into the cache; ValueError says why it did not come.

    pooch writes it aside, compares its SHA-256 and renames it; what lies there whole stays.
    """
    import pooch
    import requests

    def download(address: str, path: str, _: pooch.Pooch) -> None:
        paths = ssl.get_default_verify_paths()  # of this machine, not only those of certifi
        with _Bar(Path(path), size) as shown:
            fetching = pooch.HTTPDownloader(
                progressbar=shown,
                chunk_size=1 << 18,
                timeout=TIMEOUT,
                headers={"Accept-Encoding": "identity"},
                verify=os.environ.get("REQUESTS_CA_BUNDLE") or paths.cafile or paths.capath or True,
            )
            fetching(address, path, None)
        if Path(path).stat().st_size < size:
            raise ValueError(f"sends less than the {size:,} bytes that are expected")

    folder = cache.folder() / "downloads"
    pinned = {"registry": {sha256: f"sha256:{sha256}"}, "urls": {sha256: url}}
    known = pooch.create(folder, "", **pinned, retry_if_failed=1)
    try:
        return Path(known.fetch(sha256, downloader=download))
    except (ValueError, requests.RequestException) as error:
        while error.__context__ is not None:  # its innermost cause is the one that a reader knows
            error = error.__context__
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None
    except OSError as error:  # the user's disk, never the mirror's fault
        raise ParbenchError(
            f"{folder}: {error.strerror}; free some space, or set PARBENCH_CACHE to another place"
        ) from None


class _Bar(tqdm):
    """pooch's progress bar, which refuses a file that is not as long as it should be."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(total=size, desc="download", unit="B", unit_scale=True, **bar.keywords)
        self.path, self.size = path, size

    def __bool__(self) -> bool:
        return True  # pooch asks it; tqdm would deny where the mirror announces no length

    def update(self, _: int) -> None:
        """Show how much is there: pooch counts in whole blocks."""
        have = self.path.stat().st_size
        announced = self.total or self.size  # pooch sets it to what the mirror announces
        if announced != self.size:
            raise ValueError(f"announces {announced:,} bytes, {self.size:,} are expected")
        if have > self.size:
            raise ValueError(f"sends more than the {self.size:,} bytes that are expected")
        super().update(have - self.n)
