"""Skip tests whose tools are missing; fail them where PARBENCH_REQUIRE names the tool, or `all`.

With `all`, a test that is skipped for any other reason fails, too (tests/conftest.py).
"""

from __future__ import annotations

import importlib.util
import os
import shutil

import pytest

# The commands that each tool needs, by the names that PARBENCH_REQUIRE may list.
COMMANDS = {
    "apptainer": ("apptainer",),
    "slurm": ("sbatch", "srun", "squeue", "scontrol", "slurmctld", "slurmd", "munged"),
    "accounting": ("slurmdbd", "mariadbd"),
    "chromium": ("chromium", "chromedriver"),
    "spark": ("java",),
    "zsh": ("zsh",),
}


def which(command: str) -> str | None:
    """Return the path of ``command``; also search sbin, absent from a Debian user's PATH."""
    return shutil.which(command) or shutil.which(command, path="/usr/local/sbin:/usr/sbin:/sbin")


def require(tool: str) -> None:
    """Skip the test when ``tool`` is missing; fail it when PARBENCH_REQUIRE names the tool.

    ``tool`` is a key of COMMANDS. PARBENCH_REQUIRE holds such names, separated by blanks or
    commas, so that a machine that should have a tool cannot silently skip its tests.
    """
    missing = [command for command in COMMANDS[tool] if which(command) is None]
    if not missing:
        return
    lacking(tool, f"{tool} is not usable here: no {', '.join(missing)} on PATH")


def required(name: str) -> bool:
    """Return whether PARBENCH_REQUIRE contains ``name`` or `all`.

    Beside tools, it may name `whole`: all of what tests otherwise skip, or take a part of, to be
    short.
    """
    names = os.environ.get("PARBENCH_REQUIRE", "").replace(",", " ").split()
    return name in names or "all" in names


def require_package(name: str, module: str) -> None:
    """Skip the test when ``module``, which few studies need, is missing; fail it when
    PARBENCH_REQUIRE contains ``name``."""
    if importlib.util.find_spec(module) is not None:
        return
    lacking(name, f"{module} is not installed here: make env ARGS={name}")


def lacking(name: str, reason: str) -> None:
    """Skip the test, or fail it when PARBENCH_REQUIRE contains ``name``."""
    if required(name):
        pytest.fail(f"{reason}, and PARBENCH_REQUIRE names {name}")
    pytest.skip(reason)
