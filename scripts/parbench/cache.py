"""The cache: what is made once for all checkouts (environments, wheels, images, downloads).

Standard library only: scripts/environment.py imports it on a bare Python.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from parbench.errors import ParbenchError

# What an archive of `make bundle` brought along. Where it is, the machine is taken for one without
# network, and the cache is the one that came with it.
BUNDLE = Path(__file__).resolve().parents[2] / "bundle"


def folder() -> Path:
    """`$PARBENCH_CACHE`, by default `$XDG_CACHE_HOME/parbench` or `~/.cache/parbench`."""
    if BUNDLE.is_dir():
        return BUNDLE / "cache"
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(os.environ.get("PARBENCH_CACHE") or Path(base) / "parbench").absolute()


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file ``path``; says so where another process has it, who makes ``what``.

    By flock, as filelock does, which a bare Python has not.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        mend = "point PARBENCH_CACHE at a folder of yours, on a local disk"
        raise ParbenchError(f"{path}: {error.strerror}; {mend}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process makes {what}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    """A line for people."""
    print(f"parbench: {text}", file=sys.stderr, flush=True)
