"""Child processes that never outlive the one that started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
GRACE_SECONDS = 5.0


def start(
    words: Sequence[str],
    environment: Mapping[str, str],
    descriptors: Sequence[int],
    folder: Path | None = None,
    shielded: bool = False,
) -> subprocess.Popen:
    """Start a command in a session of its own, its output in one pipe.

    It gets SIGTERM when this process ends, however that comes: torchrun passes that on to those
    whom it starts, where SIGKILL would make orphans.

    ``shielded``: neither it nor whom it starts hears SIGTERM, and SIGHUP takes its place. Where
    Slurm tracks processes without cgroups it sends SIGTERM to all of a job, and the ranks would
    be dead before this process could ask them for a checkpoint.
    """
    library, parent = ctypes.CDLL(None), os.getpid()

    def die_with_parent() -> None:
        if shielded:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
        library.prctl(PR_SET_PDEATHSIG, signal.SIGHUP if shielded else signal.SIGTERM)
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


def answer(
    words: Sequence[str], environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """What a program says, with status 1 where that takes it more than ``seconds``."""
    try:
        return subprocess.run(
            words,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", f"no answer in {seconds} s")


@contextlib.contextmanager
def guarded(clean: Callable[[], object]) -> Iterator[None]:
    """Have ``clean`` called when this process dies before the block's end, however that comes.

    By a second process, a copy of this one, so that it also has the descriptors of its locks and
    leases: nobody gets them before ``clean`` is done.
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
            clean()
        finally:
            os._exit(0)
    os.close(gone)
    try:
        yield
    finally:
        # Before its pipe ends: what it would clean may be another's by now.
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(guard, signal.SIGKILL)
            os.waitpid(guard, 0)
        os.close(alive)


def kill_session(process: subprocess.Popen) -> None:
    """Kill a command with all whom it started, also those that would not end on SIGTERM."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


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
