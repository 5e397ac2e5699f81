"""Examine the user's own Python, with which cells train (`deployment: {python: ...}`).

probe.py runs in it. Standard library only, since the launcher imports this on any machine.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from parbench import probe, variables
from parbench.errors import ParbenchError, sentence

if TYPE_CHECKING:
    from parbench.probe import PythonFacts

KEY = "`deployment: {python: ...}`"
REQUIRED = ("torch", "torchvision", "numpy", "safetensors")  # needed by every cell
SECONDS = 120  # for the Python to list its packages, even from a slow network disk


@dataclass(frozen=True)
class OwnPython:
    """The Python at ``path``, as config.yaml names it; ``found``: see probe.this_python."""

    path: str
    found: PythonFacts

    @property
    def label(self) -> str:
        """The `deployment` of its cells, which changes with its packages."""
        return probe.label(self.found)

    @property
    def stack(self) -> str:
        """The name that its cells have in place of a stack's."""
        return f"python {self.path} (torch {self.found['packages'].get('torch', 'unknown')})"

    def missing(self, modules: Iterable[str]) -> str | None:
        """Return which of ``modules`` it lacks, and how to install them; None if it has all."""
        missing = sorted(set(modules) - set(self.found["modules"]))
        if not missing:
            return None
        message = f"{self.path} ({KEY}) has no {' and no '.join(missing)}"
        if self._is_the_systems:
            made = shlex.join([self.path, "-m", "venv", "--system-site-packages", "cells"])
            install = shlex.join(["cells/bin/python", "-m", "pip", "install", *missing])
            return (
                f"{message}, and the system keeps it for itself: {made}; {install}; and name that"
            )
        return f"{message}: {shlex.join([self.path, '-m', 'pip', 'install', *missing])}"

    @functools.cached_property
    def _is_the_systems(self) -> bool:
        """Whether pip refuses to install into it (PEP 668), except in a virtual environment."""
        code = (
            "import os, sys, sysconfig; marked = sysconfig.get_path('stdlib')\n"
            "marked = os.path.exists(os.path.join(marked, 'EXTERNALLY-MANAGED'))\n"
            "sys.exit(not (marked and sys.prefix == sys.base_prefix))"
        )
        return _run(self.path, "-c", code).returncode == 0

    @functools.cached_property
    def horovod_has_nccl(self) -> bool:
        """Whether its Horovod was built with NCCL, which only Horovod itself can report."""
        code = "import sys, horovod.torch as hvd; sys.exit(not hvd.nccl_built())"
        return _run(self.path, "-c", code).returncode == 0


def environment(python: str) -> dict[str, str]:
    """Return the environment variables for the Python at ``python``.

    They are this process's, without those of its own environment, and with the programs beside
    ``python`` first on PATH.
    """
    kept = variables.without_foreign()
    folders = kept.get("PATH", os.defpath).split(os.pathsep)
    if sys.prefix != sys.base_prefix:
        ours = {os.path.abspath(os.path.dirname(sys.executable)), os.path.join(sys.prefix, "bin")}
        folders = [folder for folder in folders if os.path.abspath(folder) not in ours]
    own = os.path.dirname(python)
    kept["PATH"] = os.pathsep.join([own, *(folder for folder in folders if folder != own)])
    return kept


def ask(python: str) -> OwnPython:
    """Return what the Python at ``python`` has.

    Raises ParbenchError, which names the key, the path and the fix, if it cannot run cells.
    """
    where = f"{KEY}: {python}"
    path = Path(python)
    if path.is_dir():
        raise ParbenchError(f"{where} is a folder; name the program in it, such as bin/python")
    if not path.exists():
        raise ParbenchError(
            f"{where} does not exist; type `which python` where torch is installed to find it"
        )
    if not os.access(path, os.X_OK):
        raise ParbenchError(f"{where} is not executable; name a Python's program, or chmod +x it")
    try:
        done = _run(python, probe.__file__)
    except OSError as error:
        raise ParbenchError(f"{where} cannot be started: {sentence(error)}") from None
    except subprocess.TimeoutExpired:
        raise ParbenchError(
            f"{where} did not list its packages within {SECONDS} s; name one that starts"
        ) from None
    lines = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
    try:
        found: PythonFacts = json.loads(done.stdout.strip().splitlines()[-1])
        version = tuple(map(int, found["version"].split(".")))
    except (LookupError, TypeError, ValueError, AttributeError):
        raise ParbenchError(
            f"{where} is not a working Python: asked for its packages, it printed: {lines[-1]}"
        ) from None
    if version < probe.LEAST:
        raise ParbenchError(
            f"{where} is Python {found['version']}, but cells need 3.11 or newer; name another one"
        )
    return OwnPython(python, found)


def required(python: str) -> OwnPython:
    """Return ``ask(python)``; ParbenchError if it lacks what every cell needs."""
    found = ask(python)
    if missing := found.missing(REQUIRED):
        raise ParbenchError(f"every cell needs {', '.join(REQUIRED)}: {missing}")
    return found


def _run(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *arguments],
        env=environment(python),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS,
        check=False,
    )
