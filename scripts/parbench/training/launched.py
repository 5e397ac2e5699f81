"""Tie a rank to its launcher: end when it ends, and treat SIGTERM as a request for a checkpoint."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue

MARK = "parbench: "  # prefix of lines that a rank of a pair prints for the launcher

asked_to_stop = threading.Event()
received: SimpleQueue[str] = SimpleQueue()  # lines from the launcher, sent only to pairs
stopped: list[int] = []  # processes stopped by this one, which cannot notice the launcher's end
stopping = threading.Lock()  # held while ``stopped`` changes
closed = threading.Event()  # set when the launcher has ended, or wants this process to end
ending: list[Callable[[], None]] = []  # functions that end the processes that this one has started


def place(rank: int, per_node: int, world_size: int) -> dict[str, str]:
    """Return the variables that define a rank's place; there are ``per_node`` ranks on a node."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % per_node),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(per_node),
    }


def begin() -> None:
    """Tie this process to its launcher; do nothing if it was started by hand.

    Only the launcher can write to the standard input, which therefore closes when the launcher
    ends. SIGTERM, which Slurm sends before it kills, counts as a request for a checkpoint.
    """
    if "PARBENCH_STATE" not in os.environ:
        return
    signal.signal(signal.SIGTERM, lambda number, frame: asked_to_stop.set())
    threading.Thread(target=_end_with_input, name="launcher", daemon=True).start()


def _end_with_input() -> None:
    # Not sys.stdin: a process that exits might wait for its lock.
    unfinished = b""
    while chunk := os.read(0, 4096):
        *lines, unfinished = (unfinished + chunk).split(b"\n")
        for line in lines:
            received.put(line.decode())
    closed.set()
    stopping.acquire()  # never released, so that no further process is stopped
    send(signal.SIGCONT, stopped)
    for end in ending:
        end()
    os._exit(1)


def send(number: int, processes: Iterable[int]) -> None:
    """Send a signal to processes, some of which may have ended."""
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
