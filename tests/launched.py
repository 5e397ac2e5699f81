"""A cell in its own folder, trained by a checkout's `parbench launch`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from parbench import files
from parbench.cell import Cell, Pair
from workspace import HANG_SECONDS, ROOT


def wait_for(there: Callable[[], object]) -> None:
    """Wait until ``there()`` is true; fail if it never is."""
    deadline = time.monotonic() + HANG_SECONDS
    while not there():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def launched_pairs(home: Path, data: Path) -> Iterator[Callable[..., Launched]]:
    """Yield a function that makes a pair to launch; fail if a process is left afterwards."""
    made = []

    def make(*sides: Cell, root: Path = ROOT, **kind: object) -> Launched:
        made.append(Launched(Pair("pair", 0, sides, **kind), data, home, root))
        return made[-1]

    yield make
    left = [process for it in made for process in it.processes()]
    for process in left:
        process.kill()
    assert not left


class Launched:
    """The cell or pair ``value`` on ``data``, below ``home``, run by the launcher of ``root``."""

    def __init__(self, value: Cell | Pair, data: Path, home: Path, root: Path = ROOT):
        self.data, self.root, self.locks = data, root, home / "locks"
        self.temporary = home / f"temporary-{value.id}"
        self.temporary.mkdir()
        self.folder = home / "results" / "cells" / value.id
        self.out, self.log = self.folder / "metrics.json", self.folder / "log.txt"
        files.write_json(self.folder / "cell.json", value.json())

    def start(self, **variables: str) -> subprocess.Popen:
        """Start the launcher."""
        words = [sys.executable, "scripts/bin/parbench", "launch", "--data", str(self.data)]
        words += ["--cell", str(self.folder / "cell.json"), "--out", str(self.out)]
        own = {"TMPDIR": str(self.temporary), "PARBENCH_LOCKS": str(self.locks)}
        return subprocess.Popen(
            words,
            cwd=self.root,
            env={**os.environ, **own, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, **variables: str) -> tuple[int, str, str]:
        """Run the launcher; return its status, stdout and stderr."""
        process = self.start(**variables)
        said, errors = process.communicate(timeout=HANG_SECONDS)
        return process.returncode, said, errors

    def processes(self) -> list[psutil.Process]:
        """Return its launchers and ranks that are alive."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("TMPDIR") == str(self.temporary):
                    found += [process] if process.status() != "zombie" else []
            except psutil.Error:  # ended meanwhile, or another user's
                continue
        return found

    def beats(self) -> dict[int, dict]:
        """Return the heartbeats of live ranks: {rank: {rank, pid, phase, epoch, step}}.

        A launcher that was killed outright leaves the last heartbeats of its ranks behind.
        """
        paths = self.temporary.glob("parbench-*/*/rank*.heartbeat")
        told = [json.loads(path.read_text()) for path in paths]
        return {beat["rank"]: beat for beat in told if psutil.pid_exists(beat["pid"])}
