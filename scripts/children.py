"""Child processes that never outlive the one that started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
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

    It gets SIGTERM when this process ends, however that comes: programs that start others
    (torchrun, horovodrun, apptainer) pass it on, where SIGKILL would make orphans.
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
