"""Run one rank of a cell: what every task of srun becomes, on its node.

The command and each rank's own variables are in a file that the launcher wrote. Inside an image
only variables of another name arrive: those of Slurm that a rank needs are handed on here.
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
