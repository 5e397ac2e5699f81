"""Run a program as the ranks of one node until they end.

    python tests/started.py COUNT PROGRAM ARGUMENT...

Like `parbench launch`, but without locks, images, log or monitoring.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from parbench.training.launched import place


def main() -> int:
    """Run the ranks; return 0, or the status of a failed rank after killing the others."""
    count, words = int(sys.argv[1]), [sys.executable, *sys.argv[2:]]
    with tempfile.TemporaryDirectory() as folder:
        meet = {"PARBENCH_STORE": f"{folder}/store", "GLOO_SOCKET_IFNAME": "lo"}
        meet["HOROVOD_GLOO_IFACE"] = "lo"
        ranks = [
            subprocess.Popen(
                words,
                stdin=subprocess.PIPE,  # ranks end when this process does
                env={**os.environ, **meet, **place(rank, count, count)},
            )
            for rank in range(count)
        ]
        try:
            while not any(rank.poll() for rank in ranks):
                if all(rank.poll() == 0 for rank in ranks):
                    return 0
                time.sleep(0.05)
            time.sleep(1.0)  # time for the others to report
            return next(rank.returncode for rank in ranks if rank.poll())
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


if __name__ == "__main__":
    sys.exit(main())
