"""Tools that some tests need: skipped with a reason when absent, failed where they must be."""

from __future__ import annotations

import importlib.util
import os
import shutil

import pytest

# What a machine must offer for each name that PARBENCH_REQUIRE may list.
COMMANDS = {
    "apptainer": ("apptainer",),
    "slurm": ("sbatch", "srun", "squeue", "scontrol", "slurmctld", "slurmd", "munged"),
    "chromium": ("chromium", "chromedriver"),
    "spark": ("java",),
}


def which(command: str) -> str | None:
    """The path of ``command``; an ordinary user's PATH on Debian leaves out sbin."""
    return shutil.which(command) or shutil.which(command, path="/usr/local/sbin:/usr/sbin:/sbin")


def require(tool: str) -> None:
    """Skip the test when ``tool`` is missing; fail it when PARBENCH_REQUIRE names the tool.

    ``tool`` is a key of COMMANDS. PARBENCH_REQUIRE holds such names, separated by
    blanks or commas, so that a machine that should have a tool cannot skip its tests unseen.
    """
    missing = [command for command in COMMANDS[tool] if which(command) is None]
    if not missing:
        return
    lacking(tool, f"{tool} is not usable here: no {', '.join(missing)} on PATH")


def require_package(name: str, module: str) -> None:
    """Skip a test where packages that few studies need are missing; ``name`` in PARBENCH_REQUIRE
    makes that a failure."""
    if importlib.util.find_spec(module) is not None:
        return
    lacking(name, f"{module} is not installed here: python scripts/environment.py ensure")


def lacking(name: str, reason: str) -> None:
    """Skip the test, or fail it where PARBENCH_REQUIRE names ``name``."""
    if name in os.environ.get("PARBENCH_REQUIRE", "").replace(",", " ").split():
        pytest.fail(f"{reason}, and PARBENCH_REQUIRE names {name}")
    pytest.skip(reason)
