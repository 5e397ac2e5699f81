"""The Slurm job that this process runs in: its nodes, its end, and how to requeue it.

The executor's job steps keep little more than SLURM_JOB_ID; scontrol tells the rest.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from parbench.errors import ParbenchError
from parbench.launch.slurm_cluster import fields, run


@dataclass(frozen=True)
class Job:
    """A Slurm job. ``ends``: time.time() at the end of its walltime; ``made_for``: the comment of
    its submitter; ``hosts``: {node: host name}; ``address``: that of the first node.
    """

    number: int
    ends: float | None
    cpus_per_task: int
    made_for: str
    hosts: Mapping[str, str]
    address: str

    @property
    def nodes(self) -> list[str]:
        """The names of its nodes; this process runs on the first."""
        return list(self.hosts)

    @property
    def here(self) -> list[str]:
        """Those of its nodes that are the same machine as the first (in tests)."""
        return [node for node in self.nodes if self.hosts[node] == self.hosts[self.nodes[0]]]


def current() -> Job | None:
    """Return the job of this process, None outside Slurm; raise ParbenchError without an answer."""
    job_id = os.environ.get("SLURM_JOB_ID", "")
    if not job_id.isdigit() or shutil.which("srun") is None:
        return None
    job = _job(int(job_id))
    output = run("scontrol", "show", "node", job["NodeList"], "--oneliner")
    nodes = [fields(line) for line in output.splitlines()]
    return Job(
        number=int(job_id),
        ends=float(job["EndTime"]) if job["EndTime"].isdigit() else None,
        cpus_per_task=int(re.match(r"\d*", job.get("CPUs/Task", ""))[0] or 1),
        made_for=job.get("Comment", ""),
        hosts={node["NodeName"]: node["NodeHostName"] for node in nodes},
        address=nodes[0]["NodeAddr"],
    )


def preempted(job: Job) -> bool:
    """Return whether the job is being preempted and is still in its grace time.

    A job that exits by itself within that time counts as completed: Slurm does not requeue it.
    """
    details = _job(job.number)
    return details["JobState"] == "RUNNING" and details.get("PreemptTime", "").strip("0").isdigit()


def requeue(job: Job) -> str | None:
    """Requeue the job; return None, or why Slurm refuses."""
    try:
        run("scontrol", "requeue", str(job.number))
    except ParbenchError as error:
        return str(error)
    return None


def _job(number: int) -> dict[str, str]:
    """Return the fields of a job; times are seconds since 1970."""
    return fields(run("scontrol", "show", "job", str(number), "--oneliner"))
