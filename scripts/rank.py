"""Run one rank of a cell: each task of srun executes this program on its node.

The launcher wrote the command and each rank's own variables to a file. Only prefixed variables
reach the inside of an image, so Slurm's variables that a rank needs are copied here.
"""

import argparse
import json
import os
from pathlib import Path

import parbench  # noqa: F401  (says it where nothing of it can run)


def main() -> None:
    """Replace this process by the rank of this task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan", type=Path, help="the launcher's file")
    parser.add_argument("prefix", help="of variables that reach the inside of an image")
    arguments = parser.parse_args()
    if "SLURM_PROCID" not in os.environ:
        parser.error("srun starts this program; SLURM_PROCID, the number of its task, is not set")
    plan, prefix = json.loads(arguments.plan.read_text(encoding="utf-8")), arguments.prefix
    os.environ.update(plan["variables"][int(os.environ["SLURM_PROCID"])])
    for name in ("CUDA_VISIBLE_DEVICES", "SLURMD_NODENAME"):
        if name in os.environ:
            os.environ.setdefault(prefix + name, os.environ[name])
    os.execvp(plan["words"][0], plan["words"])  # noqa: S606


if __name__ == "__main__":
    main()
