"""A cell in a folder of its own, trained by a checkout's scripts/launch.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from parbench import files
from parbench.cell import Cell, Pair
from workspace import ROOT


def wait_for(there: Callable[[], object], seconds: float = 120, often: float = 0.02) -> None:
    """Wait until ``there()``."""
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(often)


class Launched:
    """The cell or pair ``value`` on ``data``, below ``home``; its launcher is that of ``root``."""

    def __init__(self, value: Cell | Pair, data: Path, home: Path, root: Path = ROOT):
        self.data, self.root, self.locks = data, root, home / "locks"
        self.temporary = home / f"temporary-{value.id}"
        self.temporary.mkdir()
        self.folder = home / "results" / "cells" / value.id
        self.out, self.log = self.folder / "metrics.json", self.folder / "log.txt"
        files.write_json(self.folder / "cell.json", value.json())

    def start(self, **variables: str) -> subprocess.Popen:
        """Start the launcher."""
        words = [sys.executable, "scripts/launch.py", "--data", str(self.data)]
        words += ["--cell", str(self.folder / "cell.json"), "--out", str(self.out)]
        usual = {k: v for k, v in os.environ.items() if not k.startswith(("PARBENCH_", "SLURM_"))}
        own = {"TMPDIR": str(self.temporary), "PARBENCH_LOCKS": str(self.locks)}
        return subprocess.Popen(
            words,
            cwd=self.root,
            env={**usual, **own, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, **variables: str) -> tuple[int, str, str]:
        """The launcher's status, and what it said on stdout and stderr."""
        process = self.start(**variables)
        said, errors = process.communicate(timeout=300)
        return process.returncode, said, errors

    def processes(self) -> list[psutil.Process]:
        """Those of its launchers and ranks that live."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("TMPDIR") == str(self.temporary):
                    found += [process] if process.status() != "zombie" else []
            except psutil.Error:  # ended meanwhile, or another user's
                continue
        return found

    def beats(self) -> dict[int, dict]:
        """What its ranks that live tell of themselves: {rank: {rank, pid, phase, epoch, step}}.

        A launcher that was killed outright has left what its ranks said last.
        """
        paths = self.temporary.glob("parbench-*/*/rank*.heartbeat")
        told = [json.loads(path.read_text()) for path in paths]
        return {beat["rank"]: beat for beat in told if psutil.pid_exists(beat["pid"])}
