"""The processes of a run, found by its mark, and their end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time

import machine

# Seconds between asking the processes to end and killing them.
GRACE_SECONDS = 5.0


def members(state: str) -> list[int]:
    """Processes of the run whose PARBENCH_STATE is ``state``: torchrun's workers leave the session
    and, when their parent dies, the family, but keep their environment."""
    mark = f"PARBENCH_STATE={state}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:  # gone, or another user's
                continue
            if mark in words:
                found.append(int(entry))
    return found


def end_all(state: str, grace: float) -> list[int]:
    """End all processes of a run: asked first, killed after ``grace`` seconds.

    Returns those that still live half a minute later: the kernel does not let go of them.
    """
    end_some(members(state))
    _wait_until_none(state, grace)
    deadline = time.monotonic() + 30
    while (alive := members(state)) and time.monotonic() < deadline:
        _signal(alive, signal.SIGKILL)
        time.sleep(0.05)
    return alive


def end_some(pids: list[int]) -> None:
    """Ask some processes of a run to end."""
    _signal(pids, signal.SIGHUP)  # they do not hear SIGTERM, see children.start


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _wait_until_none(state: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while members(state) and time.monotonic() < deadline:
        time.sleep(0.05)


def oom_kills() -> int:
    """How often the kernel has killed for lack of memory: on this machine and in our cgroups."""
    texts = [machine.read("/proc/vmstat")]
    texts += machine.cgroup("memory.events", "memory")
    texts += machine.cgroup("memory.oom_control", "memory")
    return sum(int(n) for text in texts for n in re.findall(r"^oom_kill (\d+)$", text, re.M))
