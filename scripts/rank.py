"""Run one rank of a cell: what every task of srun is, on its node.

The command and each rank's own variables are in a file that the launcher wrote. Inside an image
only variables of another name arrive: those of Slurm that a rank needs are handed on here. How the
rank failed is left beside the file, since srun tells of the first to end alone.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    """The rank's exit status, as a shell tells it."""
    path, prefix = Path(sys.argv[1]), sys.argv[2]
    plan, rank = json.loads(path.read_text(encoding="utf-8")), int(os.environ["SLURM_PROCID"])
    os.environ.update(plan["variables"][rank])
    for name in ("CUDA_VISIBLE_DEVICES", "SLURMD_NODENAME"):
        if name in os.environ:
            os.environ.setdefault(prefix + name, os.environ[name])
    process = subprocess.Popen(plan["words"])
    signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
    code = process.wait()
    if code:
        told = {"rank": rank, "code": code, "time": time.time()}
        path.with_name(f"rank{rank}.exit.json").write_text(json.dumps(told))
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
