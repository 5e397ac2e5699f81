"""Hears that Slurm wants a job to end, where this process itself would not be told.

With cgroups, as most sites track processes, Slurm sends SIGTERM to the processes that it started
itself and to nobody below them. A cell's launcher is below Snakemake, which waits; both would be
killed some seconds later, without a last checkpoint. A step of the job's own, beside it, is told.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator

import children
import job
from stopping import Stop

LOOK_SECONDS = 1.0
ASKED = b"asked to end"
# One process without children: Slurm takes a step whose last process it has lost sight of, and that
# still holds the step's output, for one that cannot be ended, and drains the node.
LISTEN = f"""
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})
signal.sigwait({{signal.SIGTERM}})
print({ASKED.decode()!r}, flush=True)
"""


@contextlib.contextmanager
def listening(own: job.Job, stop: Stop) -> Iterator[None]:
    """Meanwhile ``stop`` is asked when Slurm asks the job ``own`` to end.

    Without the step, where Slurm refuses it, a cell goes on from the checkpoint before.
    """
    words = ["srun", "--jobid", str(own.number), "--overlap", "--nodes=1", "--ntasks=1"]
    words += ["--nodelist", _this_one(own), "--cpus-per-task=1", "--mem=0", "--quiet"]
    try:
        step = children.start([*words, sys.executable, "-S", "-c", LISTEN], os.environ, ())
    except FileNotFoundError:
        yield
        return
    assert step.stdout is not None
    os.set_blocking(step.stdout.fileno(), False)

    def look() -> None:
        if ASKED in (step.stdout.read() or b""):
            stop.ask(signal.SIGTERM)

    try:
        with stop.every(LOOK_SECONDS, look):
            yield
    finally:
        children.end(step)
        step.stdout.close()


def _this_one(own: job.Job) -> str:
    """The name that Slurm gives to this node."""
    return own.nodes[0] if own.nodes else socket.gethostname().partition(".")[0]
