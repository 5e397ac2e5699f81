"""What a process does first that is a rank of a launcher: it ends with it, and hears SIGTERM."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterable
from queue import SimpleQueue

MARK = "parbench: "  # so begins a line for the launcher, of a rank of a pair

asked_to_stop = threading.Event()
told: SimpleQueue[str] = SimpleQueue()  # lines of the launcher; of a pair alone there are any
stopped: list[int] = []  # processes that this one has stopped, which do not see their input's end
stopping = threading.Lock()  # held while it does so


def begin() -> None:
    """Tie this process to its launcher. Nothing is done in one that was started by hand.

    The launcher alone can write to the standard input: it ends with the launcher, however that
    ends. SIGTERM, which Slurm sends before it kills, is the wish for a checkpoint.
    """
    if "PARBENCH_STATE" not in os.environ:
        return
    signal.signal(signal.SIGTERM, lambda number, frame: asked_to_stop.set())
    threading.Thread(target=_end_with_input, name="launcher", daemon=True).start()


def _end_with_input() -> None:
    # Not by way of sys.stdin, whose lock a process that ends may wait for.
    begun = b""
    while read := os.read(0, 4096):
        *lines, begun = (begun + read).split(b"\n")
        for line in lines:
            told.put(line.decode())
    stopping.acquire()  # for good: nobody is stopped any more
    send(signal.SIGCONT, stopped)
    os._exit(1)


def send(number: int, processes: Iterable[int]) -> None:
    """Send a signal to processes, of which some may have ended."""
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
