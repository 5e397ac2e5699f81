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
from collections.abc import Iterator

import children
import job
from stopping import Stop

LOOK_SECONDS = 1.0
ASKED = b"asked to end"
LISTEN = f"trap 'echo {ASKED.decode()}; exit' TERM; while :; do sleep 3600 & wait $!; done"


@contextlib.contextmanager
def listening(own: job.Job, stop: Stop) -> Iterator[None]:
    """Meanwhile ``stop`` is asked when Slurm asks the job ``own`` to end.

    Without the step, where Slurm refuses it, a cell goes on from the checkpoint before.
    """
    words = ["srun", "--jobid", str(own.number), "--overlap", "--nodes=1", "--ntasks=1"]
    words += ["--nodelist", _this_one(own), "--cpus-per-task=1", "--mem=0", "--quiet"]
    try:
        step = children.start([*words, "sh", "-c", LISTEN], os.environ, ())
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
