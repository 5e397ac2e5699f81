"""Find out which optional software for cells this machine's own environment has."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

from parbench import distribution, machine, packages
from parbench.cell import Cell

JAVA = 17  # the oldest that Spark 4 runs on


class Software:
    """The software in this machine's own environment; DeployedSoftware also covers images."""

    def without_horovod(self) -> str | None:
        """Return why cells cannot use Horovod; None if they can."""
        state = _horovod_state()
        if state.get("available") is False:
            return f"Horovod could not be built: {state.get('reason') or 'no reason recorded'}"
        if importlib.util.find_spec("horovod") is None:
            return "Horovod is not installed: make env ARGS=horovod"
        return None

    def without(self, name: str, module: str) -> str | None:
        """Return why cells lack ``module`` of the lock file ``name``.txt; None if they have it."""
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed: make env ARGS={name}"
        return None

    def without_text(self) -> str | None:
        """Return why cells lack the packages of text models; None if they have them."""
        return self.without("text", "transformers")

    def without_programs(self) -> str | None:
        """Return why the user's own programs cannot be sides of a pair; None if they can."""
        return None

    def without_spark(self) -> str | None:
        """Return why cells cannot use Spark; None if they can."""
        if missing := self.without("spark", "pyspark"):
            return missing
        found = _java()
        if found.isdigit() and int(found) >= JAVA:
            return None
        return (
            f"Spark needs Java {JAVA} or newer (found {found}): {distribution.system('java')}; "
            "JAVA_HOME, if it is set, must name it"
        )

    def without_torch(self, stack: str, least: str) -> str | None:
        """Return why cells have no torch of version ``least`` or later; None if they have one."""
        return packages.too_old(stack, least)

    def without_modules(self, cell: Cell) -> str | None:
        """Return which packages that ``cell``'s model and strategy need are missing, or None.

        Every environment of parbench has those that the methods above do not cover.
        """
        return None

    def without_compiler(self) -> str | None:
        """Return why torch.compile cannot work; None if it can."""
        if shutil.which(os.environ.get("CXX", "g++")) is None:
            return f"needs a C++ compiler: {distribution.install('compiler')}"
        return self.without_headers(sysconfig.get_path("include"))

    def without_headers(self, include: str) -> str | None:
        """Return why torch.compile lacks Python's headers; None if ``include`` has them."""
        if not Path(include, "Python.h").is_file():
            return f"torch.compile needs Python's headers: {distribution.install('headers')}"
        return None

    def without_nccl(self) -> str | None:
        """Return why Horovod cannot use GPUs; None if it can."""
        if _horovod_state().get("gpu") == "nccl":
            return None
        return "needs Horovod with NCCL: PARBENCH_HOROVOD_GPU=nccl make report"


@functools.cache
def _java() -> str:
    """Return the version of the Java that Spark would start, such as "17", or what is wrong."""
    home = os.environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if program is None:
        return "none on PATH"
    where = f"JAVA_HOME: {home}" if home else program
    if not os.access(program, os.X_OK):
        return f"no {program}, which JAVA_HOME names"
    text, problem = machine.output_of([program, "-version"])
    # java version "1.8.0_392", openjdk version "21-ea", openjdk 17.0.9 2023-10-17. A line with
    # JAVA_TOOL_OPTIONS, which may contain anything, may come first.
    words = "\n".join(line for line in text.splitlines() if not line.startswith("Picked up"))
    version = re.search(r'\b(?:version|openjdk|java) "?(?:1\.)?(\d+)', words, re.IGNORECASE)
    if version is None:
        return f"{where}, which prints {problem or machine.last_line(text)}"
    number = int(version[1])
    return str(number) if number >= JAVA else f"{number}, {where}"


def _horovod_state() -> dict[str, object]:
    """Return what `parbench env` recorded about its Horovod: {available, gpu, ...}."""
    path = Path(sys.prefix, "horovod.json")
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
