"""Child processes that never outlive the one that started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
GRACE_SECONDS = 5.0


def start(
    words: Sequence[str],
    environment: Mapping[str, str],
    descriptors: Sequence[int],
    folder: Path | None = None,
) -> subprocess.Popen:
    """Start a command in a session of its own, its output in one pipe.

    It gets SIGTERM when this process ends, however that comes: torchrun and horovodrun pass that
    on to those whom they start, where SIGKILL would make orphans.
    """
    library, parent = ctypes.CDLL(None), os.getpid()

    def die_with_parent() -> None:
        library.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return subprocess.Popen(
        words,
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=descriptors,
        preexec_fn=die_with_parent,
    )


@contextlib.contextmanager
def guarded(process: subprocess.Popen) -> Iterator[None]:
    """Kill a command's whole session when this process dies, however that comes.

    For programs that neither end on SIGTERM at once nor take along those whom they started. The
    guard is a copy of this process, so that it holds its locks until all are gone.
    """
    gone, alive = os.pipe()
    guard = os.fork()
    if guard == 0:
        try:
            os.setsid()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):  # whoever reads this process's output must see its end
                os.dup2(nowhere, stream)
            os.close(alive)
            os.read(gone, 1)  # ends with the other process
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        finally:
            os._exit(0)
    os.close(gone)
    try:
        yield
    finally:
        os.kill(guard, signal.SIGKILL)  # before the session's number may be another's
        os.waitpid(guard, 0)
        os.close(alive)


def end(process: subprocess.Popen) -> None:
    """End a command and its session: asked first, killed after a grace."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return
