"""Run one rank of a cell, as a task of srun on its node.

The launcher wrote the command and each rank's own variables to a file. Only prefixed variables
reach the inside of an image, so Slurm's variables that a rank needs are copied here.
"""

import argparse
import json
import os
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the launcher's file and the prefix."""
    parser.add_argument("plan", type=Path, help="the file that the launcher wrote")
    parser.add_argument("prefix", help="of variables that reach the inside of an image")


def run(options: argparse.Namespace) -> None:
    """Replace this process by the rank of this task."""
    from parbench.errors import ParbenchError

    if "SLURM_PROCID" not in os.environ:
        raise ParbenchError(
            "srun starts this command; SLURM_PROCID, the number of its task, is not set"
        )
    plan, prefix = json.loads(options.plan.read_text(encoding="utf-8")), options.prefix
    os.environ.update(plan["variables"][int(os.environ["SLURM_PROCID"])])
    for name in ("CUDA_VISIBLE_DEVICES", "SLURMD_NODENAME"):
        if name in os.environ:
            os.environ.setdefault(prefix + name, os.environ[name])
    os.execvp(plan["command"][0], plan["command"])  # noqa: S606
