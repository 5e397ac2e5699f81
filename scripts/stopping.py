"""How this process is asked to end, and what it does now and then meanwhile."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

ASKS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Somebody who insists asks again. What comes sooner is the same wish by another way: Ctrl-C reaches
# this process from the terminal and, a moment later, from Snakemake.
INSIST_SECONDS = 2.0
TICK_SECONDS = 1.0
# Not a signal that anybody sends: the end of the job's walltime is near.
WALLTIME = signal.SIGALRM


class Stopped(Exception):
    """This process was asked to end. ``number``: the signal, or WALLTIME."""

    def __init__(self, number: int, sentence: str = ""):
        near = "stopped before the end of its walltime"
        plain = near if number == WALLTIME else f"ended by {signal_name(number)}"
        super().__init__(sentence or plain)
        self.number = number


class Stop:
    """SIGTERM, SIGINT and SIGHUP: an exception while this process waits, a note while it watches.

    An exception could strike between a start of processes and the note of it. ``insisted``: it was
    asked a second time.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.insisted = False
        self.raises = True
        self._since = 0.0
        self._actions: list[list] = []  # [seconds, when it is due, what to do]

    def __enter__(self) -> Stop:
        self._before = {
            number: signal.signal(number, self._receive)
            for number in ASKS
            if signal.getsignal(number) != signal.SIG_IGN  # nohup, a shell's background job
        }
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._tick)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def every(self, seconds: float, action: Callable[[], None]) -> Iterator[None]:
        """Have ``action`` called every so often, also while this process waits for a lock.

        In the main thread: a thread of its own would not survive the fork of a guard.
        """
        entry = [seconds, time.monotonic() + seconds, action]
        self._actions.append(entry)
        signal.setitimer(signal.ITIMER_REAL, TICK_SECONDS, TICK_SECONDS)
        try:
            yield
        finally:
            self._actions.remove(entry)

    def ask(self, number: int) -> None:
        """As if the signal ``number`` had come."""
        if self.received is None:
            self.received, self._since = number, time.monotonic()
            if self.raises:
                raise Stopped(number)
        elif number != WALLTIME and time.monotonic() - self._since > INSIST_SECONDS:
            self.insisted = True

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.ask(number)

    def _tick(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        for entry in list(self._actions):
            if now >= entry[1]:
                entry[1] = now + entry[0]
                entry[2]()


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
