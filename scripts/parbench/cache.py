"""Find and lock the cache that all checkouts share: environments, wheels, images, downloads.

Standard library only, since `parbench env` imports it on a bare Python.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from parbench import files
from parbench.errors import ParbenchError

# Unpacked from an archive of `make bundle`. If it exists, this machine is assumed to have no
# network, and the archive's cache is used.
BUNDLE = Path(__file__).resolve().parents[2] / "bundle"
REMEDY = "set PARBENCH_CACHE to a folder of your own, on a local disk"


def folder() -> Path:
    """Return `$PARBENCH_CACHE`, by default `$XDG_CACHE_HOME/parbench` or `~/.cache/parbench`.

    Raises ParbenchError for a user without a home folder if neither variable is set.
    """
    if BUNDLE.is_dir():
        return BUNDLE / "cache"
    if folder := os.environ.get("PARBENCH_CACHE"):
        return files.user_path(folder, "PARBENCH_CACHE").absolute()
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    except RuntimeError:
        raise ParbenchError(
            f"user {os.getuid()} has no home folder for the cache; {REMEDY}, or set HOME"
        ) from None
    return Path(base, "parbench").absolute()


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file ``path``; wait, with a message, while another process makes ``what``.

    Uses flock, as filelock does, because a bare Python has no filelock. Raises ParbenchError if the
    file cannot be opened or locked.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise ParbenchError(
            f"{path}: {error.strerror}; if it is the cache, {REMEDY}; else choose a folder that "
            "you may write to"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print_message(f"another process is making {what}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise ParbenchError(
                f"{path}: this disk has no locks ({error.strerror}); if it is the cache, {REMEDY}"
                "; else work on another disk, or ask for the mount option flock "
                "(docs/slurm-admin.md)"
            ) from None
        yield


def print_message(text: str) -> None:
    """Print a message on standard error."""
    print(f"parbench: {text}", file=sys.stderr, flush=True)
