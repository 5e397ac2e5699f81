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

from errors import ParbenchError


def folder() -> Path:
    """`$PARBENCH_CACHE`, by default `$XDG_CACHE_HOME/parbench` or `~/.cache/parbench`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(os.environ.get("PARBENCH_CACHE") or Path(base) / "parbench").absolute()


@contextlib.contextmanager
def locked(
    path: Path, what: str, mend: str = "point PARBENCH_CACHE at a folder that is yours"
) -> Iterator[int]:
    """Hold a lock file; the kernel lets go of it when the last process that holds it ends.

    ``what`` is named when somebody else has it, ``mend`` where the file cannot be made. Yields the
    descriptor, for child processes that must hold it, too.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ParbenchError(f"{path}: {error.strerror}; {mend}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(
                f"parbench: another process makes {what}; waiting for it",
                file=sys.stderr,
                flush=True,
            )
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            raise ParbenchError(
                f"{path}: this file system has no locks ({error.strerror}), a local disk is "
                f"needed; {mend}"
            ) from None
        yield handle
    finally:
        os.close(handle)
