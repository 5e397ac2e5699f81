"""A file that lies elsewhere: fetched from its mirrors, continued, verified by size and SHA-256.

Also what dataset.py and weights.py, which make something of it, have alike: lock, disk, progress.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import http.client
import os
import re
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tqdm import tqdm

import cache
import files
from errors import ParbenchError
from printable import printable

TIMEOUT = 30.0  # seconds without a byte, or at a trickle, after which a mirror counts as stalled
SLOWEST = 1024  # bytes a second; below this, over TIMEOUT seconds, it is a trickle
ATTEMPTS = 4  # at one mirror, as long as each brings something new
BLOCK = 1 << 18


class MirrorError(Exception):
    """Why one mirror did not give the archive. Another may."""


class CutOffError(MirrorError):
    """A transfer that ended early: what has come stays, and the rest may be asked for."""


def fetch(urls: list[str], size: int, sha256: str) -> Path:
    """Path of a verified copy of a file: from the cache, or from the first mirror that has it.

    An interrupted download lies in the cache as <sha256>.part and is continued, by whichever
    mirror answers. Raises ParbenchError that lists every mirror with its reason.
    """
    folder = cache.folder() / "downloads"
    final, part = folder / sha256, folder / f"{sha256}.part"
    with locked(folder / f"{sha256}.lock", "downloads the same file"):
        if final.exists():
            try:
                return verified(final, size, sha256)
            except MirrorError as reason:
                say(f"{final}: {reason}; downloading again")
                final.unlink()
        reasons = []
        for url in urls:
            try:
                if (local := file_of_url(url)) is not None:
                    return verified(local, size, sha256)
                obtain(url, part, size, sha256)
            except MirrorError as reason:
                say(f"{url}: {reason}")
                reasons.append(f"  {url}: {reason}")
                continue
            os.replace(part, final)
            say(f"{url}: {size:,} bytes, SHA-256 as expected")
            return final
    raise ParbenchError(
        f"no mirror gave the file with SHA-256 {sha256}:\n" + "\n".join(reasons) + "\n"
        "Get it another way, then name it in its entry of config.yaml: `file:///folder/file` among "
        "its urls; a dataset's also as `path: /folder/archive.tar.gz`"
    )


def file_of_url(url: str) -> Path | None:
    """The local file of a file:// address, None for others. MirrorError for what is no address.

    The schema has refused other schemes, and user names, which would end up in reports.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # only looked at when asked for
    except ValueError as error:
        raise MirrorError(f"not an address ({error})") from None
    return Path(urllib.request.url2pathname(parts.path)) if parts.scheme == "file" else None


def verified(path: Path, size: int, sha256: str) -> Path:
    """Return ``path`` when its size and SHA-256 are as expected; MirrorError says what is not."""
    try:
        if not path.is_file():
            raise MirrorError("no such file")
        if (found := path.stat().st_size) != size:
            raise MirrorError(f"it has {found:,} bytes, {size:,} are expected")
        if (found := files.sha256_file(path)) != sha256:
            raise MirrorError(f"it has the SHA-256 {found}, {sha256} is expected")
    except OSError as error:
        raise MirrorError(error.strerror or str(error)) from None
    return path


def obtain(url: str, part: Path, size: int, sha256: str) -> None:
    """Bring ``part`` to the whole, verified archive from one http(s) mirror, else MirrorError."""
    for _ in range(ATTEMPTS):
        before = size_of(part)
        try:
            transfer(url, part, size)
        except CutOffError as reason:
            if size_of(part) <= before:
                raise
            say(f"{url}: {reason}; continuing")
            continue
        try:
            verified(part, size, sha256)
            return
        except MirrorError as reason:
            part.unlink()
            # The beginning may have come from another mirror: this one is not to blame yet.
            if before == 0:
                raise MirrorError(f"serves something else: {reason}") from None
            say(f"{url}: what was downloaded before does not fit ({reason}); starting again")
    raise MirrorError(f"cut off {ATTEMPTS} times")


def size_of(path: Path) -> int:
    """Bytes in a file; 0 when there is none."""
    return path.stat().st_size if path.exists() else 0


def opener() -> urllib.request.OpenerDirector:
    """HTTP and HTTPS and nothing else, so that no redirect leads to file:, ftp: or data:."""
    director = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        director.add_handler(handler())
    return director


def transfer(url: str, part: Path, size: int) -> None:
    """Continue ``part`` up to ``size`` bytes, or start it. MirrorError, CutOffError as they say.

    A mirror that announces or sends another length is refused before or as soon as it does.
    """
    have = size_of(part)
    if have > size:
        part.unlink()
        have = 0
    if have == size:
        return
    demand_space(part.parent, size - have, "make room, or set PARBENCH_CACHE to a larger place")
    headers = {"User-Agent": "parbench", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310
    try:
        with opener().open(request, timeout=TIMEOUT) as response:
            have = accepted_offset(response, have, size)
            receive(response, part, have, size)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink(missing_ok=True)  # then the next attempt or mirror starts afresh
        raise MirrorError(str(error)) from None
    except urllib.error.URLError as error:
        raise MirrorError(f"not reachable ({error.reason})") from None
    except TimeoutError:
        raise MirrorError(f"stalled: nothing for {TIMEOUT:g} seconds") from None
    except ValueError as error:  # a port or host name that cannot be one
        raise MirrorError(f"not an address ({error})") from None
    except http.client.IncompleteRead:
        raise CutOffError(f"cut off after {size_of(part):,} of {size:,} bytes") from None
    except (OSError, http.client.HTTPException) as error:
        raise CutOffError(f"connection lost ({type(error).__name__}: {error})") from None
    if (have := size_of(part)) > size:
        part.unlink()
        raise MirrorError(f"sends more than the {size:,} bytes that are expected")
    if have < size:
        raise CutOffError(f"cut off after {have:,} of {size:,} bytes")


def accepted_offset(response: http.client.HTTPResponse, have: int, size: int) -> int:
    """Where the body of ``response`` begins: at ``have``, or at 0 when Range was ignored."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        field = response.headers.get("Content-Range", "")
        match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", field.strip())
        if not match or int(match[1]) != have or match[3] not in ("*", str(size)):
            raise MirrorError(f"answers with the range {field!r}; {have}-/{size} was asked for")
    elif response.status == http.HTTPStatus.OK:
        have = 0
    else:
        raise MirrorError(f"answers with status {response.status}")
    length = response.headers.get("Content-Length")
    if length is not None and length != str(size - have):
        raise MirrorError(f"announces {length} bytes, {size - have} are expected")
    return have


def receive(response: http.client.HTTPResponse, part: Path, have: int, size: int) -> None:
    """Write the body to ``part`` from byte ``have`` on; stop after more than ``size`` in all.

    TimeoutError also for a trickle: a byte now and then would never time out by itself.
    """
    with (
        writable(part, "ab" if have else "wb") as write,
        progress("download", size, "B", have) as advance,
    ):
        since, window = time.monotonic(), 0
        while have <= size and (block := response.read1(BLOCK)):
            write(block)
            advance(len(block))
            have += len(block)
            window += len(block)
            if (elapsed := time.monotonic() - since) > TIMEOUT:
                if window < SLOWEST * elapsed:
                    raise TimeoutError
                since, window = time.monotonic(), 0


@contextlib.contextmanager
def writable(part: Path, mode: str) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that appends bytes to ``part``.

    What it cannot write is the user's disk, never the mirror's fault: ParbenchError, and the
    download goes with it, so that a full disk is not kept full by half a file.
    """

    def failed(error: OSError) -> ParbenchError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        return ParbenchError(
            f"{part}: {error.strerror}; free some space, or set PARBENCH_CACHE to another place"
        )

    try:
        file = open(part, mode, buffering=0)  # noqa: SIM115
    except OSError as error:
        raise failed(error) from None

    def write(block: bytes) -> None:
        rest = memoryview(block)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError as error:
            raise failed(error) from None

    with file:
        yield write


def say(message: str) -> None:
    """Print one line of progress, at once, where the log of the job goes."""
    print(printable(message), file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress(label: str, total: int, unit: str, done: int = 0) -> Iterator[Callable[[int], Any]]:
    """Yield a function that is told how many more are done.

    A bar on a terminal; elsewhere a plain line at the start and for every tenth.
    """
    if sys.stderr.isatty():
        with tqdm(total=total, initial=done, desc=label, unit=unit, unit_scale=True) as bar:
            yield bar.update
        return
    state = {"done": done, "tenth": done * 10 // total}
    say(f"{label}: {total:,} {unit}" + (f", {done:,} there already" if done else ""))

    def advance(count: int) -> None:
        state["done"] += count
        if (tenth := state["done"] * 10 // total) > state["tenth"]:
            state["tenth"] = tenth
            say(f"{label}: {tenth * 10} %")

    yield advance


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; while another process has it, say so and wait.

    The kernel frees the lock when its holder dies, so that no lock is ever stale.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting: another process {what} (lock {path})")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            # Some cluster file systems are mounted without locks. Files are still renamed into
            # place whole; two processes may at worst do the same work.
            say(f"{path}: no locks on this file system; start one process at a time")
        yield


def demand_space(folder: Path, needed: int, fix: str) -> None:
    """Raise ParbenchError when ``folder``'s file system has less than ``needed`` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ParbenchError(f"{folder}: {needed:,} bytes are needed and {free:,} are free; {fix}")


def take(name: str, source: Path, out: Path) -> None:
    """Copy what a bundle brought, and was verified, to ``out``."""
    demand_space(out.parent, source.stat().st_size, "make room there")
    say(f"{name}: taking it from {source.parent}")
    with files.atomic_path(out) as temporary:
        shutil.copyfile(source, temporary)
