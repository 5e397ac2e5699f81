"""What may happen to a run: who can be killed, and what can be damaged."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import psutil


def processes_of(temporary: Path) -> list[int]:
    """All processes that were started with this folder for temporary files."""
    mark = f"TMPDIR={temporary}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:  # ended meanwhile, or another user's
                continue
    return found


def beats(temporary: Path) -> Iterator[dict]:
    """What ranks that live tell of themselves: {rank, pid, phase, epoch, step}.

    A launcher that was killed outright has left what its ranks said last.
    """
    for path in temporary.glob("parbench-*/rank*.heartbeat"):
        try:
            beat = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if psutil.pid_exists(beat["pid"]):
            yield beat


def newest(cell: Path) -> Path | None:
    """The newest checkpoint of the cell in this folder."""
    return max(cell.glob("checkpoints/*.safetensors"), default=None)


def truncate(path: Path, draw: random.Random) -> None:
    """Cut a file off somewhere."""
    os.truncate(path, draw.randrange(path.stat().st_size))


def flip(path: Path, draw: random.Random) -> None:
    """Change one bit of a file."""
    place = draw.randrange(path.stat().st_size)
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << draw.randrange(8)]))
