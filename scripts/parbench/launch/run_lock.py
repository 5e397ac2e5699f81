"""Release Snakemake's lock on this folder if the run that took it was killed.

Each run holds a shared lock on one file, which the kernel releases when the process ends. A run
that gets an exclusive lock therefore knows that no other run is alive on this machine, even in a
container or by another user. The file names a run's machine until the run ends normally.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from parbench import machine
from parbench.cache import print_message
from parbench.errors import ParbenchError

FILE = Path(".snakemake/parbench.lock")
UNLOCK = "if it is not running: snakemake --unlock"
LIVES = "another run is using this folder: wait until it ends, or use a second checkout"


@dataclass(frozen=True)
class Host:
    """A machine: its host name, machine ID and boot ID, which containers share."""

    name: str
    machine: str
    boot: str

    @classmethod
    def this_host(cls) -> Host:
        """Return this machine."""
        boot = machine.read("/proc/sys/kernel/random/boot_id").strip()
        return cls(platform.node(), machine.read("/etc/machine-id").strip(), boot)

    def is_same(self, other: Host) -> bool:
        """Return whether both are the same machine, which may have been restarted."""
        if self.boot == other.boot:
            return True
        return bool(self.machine) and (self.name, self.machine) == (other.name, other.machine)


def hold(arguments: Sequence[str]) -> bool:
    """Hold the file until this process ends; release Snakemake's lock if its run was killed.

    Returns False if another run is known to be using this folder.

    ``arguments``: for `snakemake --unlock`, such as the profile. Prints why a lock is not released
    if that is unsafe. Raises ParbenchError.
    """
    file = _opened()
    try:
        alone = _is_alone(file)
    except OSError as error:
        if before := _read(file):
            print_message(
                f"this file system has no locks ({error.strerror}), so it is unknown whether the "
                f"last run in this folder, on {before.name}, is still running; {UNLOCK}"
            )
        alone = None
    this_host, before = Host.this_host(), _read(file)
    if alone is False:
        print_message(LIVES)
    elif before is not None and not before.is_same(this_host):
        print_message(
            f"the last run in this folder, on {before.name}, has not ended properly and may still "
            f"hold the folder's lock; {UNLOCK}"
        )
    else:
        if alone and before is not None:
            print_message("an earlier run was killed; releasing its lock on this folder")
            _unlock(arguments)
        _write(file, json.dumps(asdict(this_host)))
    atexit.register(_end, file)
    if alone is not None:
        fcntl.flock(file, fcntl.LOCK_SH)
    return alone is not False


def forget() -> None:
    """Forget a run that did not end normally; called for `snakemake --unlock`."""
    file = _opened()
    with contextlib.suppress(OSError):
        if not _is_alone(file):  # that is, `hold` in the process above
            return
    _write(file, "")


def require_none() -> None:
    """Raise ParbenchError if a run is using this folder."""
    file = _opened()
    with contextlib.suppress(OSError):  # `hold` reports a disk without locks
        if not _is_alone(file):
            raise ParbenchError(LIVES)
    os.close(file)


def require_writable() -> None:
    """Raise OSError if the lock's folder, in which even a dry run of Snakemake writes, is not
    writable."""
    os.close(_opened())


def _opened() -> int:
    FILE.parent.mkdir(exist_ok=True)
    return os.open(FILE, os.O_RDWR | os.O_CREAT, 0o666)


def _is_alone(file: int) -> bool:
    """Lock the file exclusively and return True, or return False if another process holds it.

    Raises OSError if the file system does not support locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(file: int) -> Host | None:
    """Return the machine that the file names; None if the last run ended normally."""
    try:
        return Host(**json.loads(os.pread(file, 4096, 0)))
    except (ValueError, TypeError):
        return None


def _write(file: int, text: str) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, text.encode(), 0)


def _unlock(arguments: Sequence[str]) -> None:
    command = [sys.executable, "-m", "snakemake", "--unlock", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ParbenchError(
            f"Snakemake's lock on this folder cannot be released: {done.stderr.strip()}"
        )


def _end(file: int) -> None:
    """Record that this run ended normally, unless another one is running or named in the file."""
    before = _read(file)
    if before is None or not before.is_same(Host.this_host()):
        return
    try:
        alone = _is_alone(file)
    except OSError:
        alone = True
    if alone:
        _write(file, "")
