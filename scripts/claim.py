"""Who trains a cell: never two at once, over all jobs and nodes that share a file system.

``running.json`` beside the result says who. On one machine a lock is enough, which the kernel gives
back when its holder dies; between machines the file must tell whether its writer still lives: it is
touched every few seconds, and Slurm is asked about its job.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import job
import lease
import measure
from stopping import Stop

NAME = "running.json"
BEAT_SECONDS = 5.0
SILENT_SECONDS = 30.0  # whoever has not touched the file for so long is dead
ASK_SECONDS = 10.0
LOOK_SECONDS = 1.0
# In which a job holds what it was given. A pending one does nothing, and when it runs it waits.
HOLDING = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")


@contextlib.contextmanager
def claimed(folder: Path, name: str, own: job.Job | None, stop: Stop) -> Iterator[None]:
    """Be the only one who trains the cell ``name``, whose results lie in ``folder``.

    Waits for who does, saying so once. Who is taken for dead and is not finds its claim gone, and
    is asked to end by ``stop``.
    """
    host = socket.gethostname()
    claim = {
        "job": own.number if own else None,
        "host": host,
        "pid": os.getpid(),
        "started": measure.now(),
        "nodes": list(own.nodes) if own and own.nodes else [host],
    }
    path = folder / NAME
    with lease.exclusive(folder / ".lock", f"{name}: waiting for another run of this cell"):
        _write(path, claim)

        def beat() -> None:
            if _read(path)[0] != claim:
                print(f"{name}: taken over by another run", file=sys.stderr, flush=True)
                stop.ask(signal.SIGTERM)
            else:
                with contextlib.suppress(OSError):  # a full or absent disk is found by others
                    os.utime(path)

        try:
            with stop.every(BEAT_SECONDS, beat):
                yield
        finally:
            if _read(path)[0] == claim:
                path.unlink(missing_ok=True)


def _write(path: Path, claim: dict) -> None:
    """Make the file, with its content, unless somebody who lives has it."""
    handle, aside = tempfile.mkstemp(prefix=".running.", suffix=".part", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(claim) + "\n")
        os.chmod(aside, 0o644)
        while True:
            try:
                # Not O_EXCL: a name that is there has its whole content.
                os.link(aside, path)
                return
            except FileExistsError:
                _wait_for_end(path, claim)
    finally:
        os.unlink(aside)


def _wait_for_end(path: Path, claim: dict) -> None:
    """Return when the file is gone, or its writer is; then it is taken away."""
    found, _ = _read(path)
    said = False
    touched, since, asked = 0.0, time.monotonic(), 0.0
    while True:
        current, stamp = _read(path)
        if current is None and stamp is None:
            return
        if current != found or stamp != touched:
            found, touched, since = current, stamp or 0.0, time.monotonic()
        # On this machine its lock would still be held.
        dead = not isinstance(found, dict) or found.get("host") == claim["host"]
        asks = not dead and found.get("job") not in (None, claim["job"])
        if asks and (not asked or time.monotonic() - asked > ASK_SECONDS):
            asked, state = time.monotonic(), job.state(int(found["job"]))
            dead = state is None or (state != "" and state not in HOLDING)
        if dead or time.monotonic() - since > SILENT_SECONDS:
            if said or (isinstance(found, dict) and found.get("job") != claim["job"]):
                print(f"{path}: its run has died; taken over", file=sys.stderr, flush=True)
            if _read(path)[0] == found:
                path.unlink(missing_ok=True)
            return
        if not said:
            said = True
            who = f"job {found['job']}" if found.get("job") else f"process {found.get('pid')}"
            print(
                f"{path}: waiting for {who} on {found.get('host')}, which trains this cell",
                file=sys.stderr,
                flush=True,
            )
        time.sleep(LOOK_SECONDS)


def _read(path: Path) -> tuple[object, float | None]:
    """The file's content (None where it is none) and its time (None where there is no file)."""
    try:
        with open(path, encoding="utf-8") as file:  # opened: a network file system then looks anew
            stamp = os.fstat(file.fileno()).st_mtime
            return json.load(file), stamp
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError):
        return None, 0.0
