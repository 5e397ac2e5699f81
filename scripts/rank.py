"""Run one rank of a cell: each task of srun executes this program on its node.

The launcher wrote the command and each rank's own variables to a file. Only prefixed variables
reach the inside of an image, so Slurm's variables that a rank needs are copied here.
"""

import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    path, prefix = Path(sys.argv[1]), sys.argv[2]
    plan = json.loads(path.read_text(encoding="utf-8"))
    os.environ.update(plan["variables"][int(os.environ["SLURM_PROCID"])])
    for name in ("CUDA_VISIBLE_DEVICES", "SLURMD_NODENAME"):
        if name in os.environ:
            os.environ.setdefault(prefix + name, os.environ[name])
    os.execvp(plan["words"][0], plan["words"])  # noqa: S606
