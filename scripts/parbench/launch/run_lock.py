"""Snakemake's lock on this folder, released if the run that took it was killed.

Runs hold one file together, and the kernel lets it go for a process that ends. Who gets it alone
knows that no other run lives on this machine, neither in a container nor another user's. Until a
run has ended by itself, the file names its machine.
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
UNLOCK = "if it works no more: snakemake --unlock"
LIVES = "another run works in this folder: wait for its end, or use a second checkout"


@dataclass(frozen=True)
class Host:
    """A machine: its name, its number, and the number of its boot, which containers share."""

    name: str
    machine: str
    boot: str

    @classmethod
    def this_host(cls) -> Host:
        """Return this machine."""
        boot = machine.read("/proc/sys/kernel/random/boot_id").strip()
        return cls(platform.node(), machine.read("/etc/machine-id").strip(), boot)

    def is_same(self, other: Host) -> bool:
        """Return whether both are one machine, which may have been started anew."""
        if self.boot == other.boot:
            return True
        return bool(self.machine) and (self.name, self.machine) == (other.name, other.machine)


def hold(arguments: Sequence[str]) -> None:
    """Hold the file until this process ends; release Snakemake's lock of a run that was killed.

    ``arguments``: for `snakemake --unlock`, such as the profile. Prints why a lock stays where it
    must. Raises ParbenchError.
    """
    file = _opened()
    try:
        alone = _is_alone(file)
    except OSError as error:
        if before := _read(file):
            print_message(
                f"this disk has no locks ({error.strerror}), so it is unknown whether the last run "
                f"in this folder, on {before.name}, is still running; {UNLOCK}"
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


def forget() -> None:
    """Forget a run that did not end by itself, since the user types `snakemake --unlock`."""
    file = _opened()
    with contextlib.suppress(OSError):
        if not _is_alone(file):  # that is, `hold` in the process above
            return
    _write(file, "")


def require_none() -> None:
    """Raise ParbenchError if a run works in this folder."""
    file = _opened()
    with contextlib.suppress(OSError):  # `hold` reports a disk without locks
        if not _is_alone(file):
            raise ParbenchError(LIVES)
    os.close(file)


def _opened() -> int:
    FILE.parent.mkdir(exist_ok=True)
    return os.open(FILE, os.O_RDWR | os.O_CREAT, 0o666)


def _is_alone(file: int) -> bool:
    """Take the file alone and return True, or return False if another process holds it.

    Raises OSError where the disk has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(file: int) -> Host | None:
    """Return the machine that the file names; None if the last run ended by itself."""
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
    """Note that this run has ended by itself, unless another one goes on, or is elsewhere."""
    before = _read(file)
    if before is None or not before.is_same(Host.this_host()):
        return
    try:
        alone = _is_alone(file)
    except OSError:
        alone = True
    if alone:
        _write(file, "")
