"""The Slurm job that this process runs in: its nodes, when it ends, and that it runs again.

The executor's job steps keep SLURM_JOB_ID and little else; the rest is asked of the controller.
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
    """A Slurm job. ``ends``: time.time() at the end of its walltime; ``made_for`` is the comment
    that its submitter gave it; ``hosts`` the machine of each of its nodes, ``address`` the first
    node's, as Slurm knows it.
    """

    number: int
    ends: float | None
    cpus_per_task: int
    made_for: str
    hosts: Mapping[str, str]
    address: str

    @property
    def nodes(self) -> list[str]:
        """Its nodes; this process runs on the first one."""
        return list(self.hosts)

    @property
    def here(self) -> list[str]:
        """Its nodes that are the machine of the first one."""
        return [node for node in self.nodes if self.hosts[node] == self.hosts[self.nodes[0]]]


def current() -> Job | None:
    """The job of this process; None outside of Slurm. ParbenchError without Slurm's answer."""
    told = os.environ.get("SLURM_JOB_ID", "")
    if not told.isdigit() or shutil.which("srun") is None:
        return None
    job = _job(int(told))
    said = run("scontrol", "show", "node", job["NodeList"], "--oneliner")
    nodes = [fields(line) for line in said.splitlines()]
    return Job(
        number=int(told),
        ends=float(job["EndTime"]) if job["EndTime"].isdigit() else None,
        cpus_per_task=int(re.match(r"\d*", job.get("CPUs/Task", ""))[0] or 1),
        made_for=job.get("Comment", ""),
        hosts={node["NodeName"]: node["NodeHostName"] for node in nodes},
        address=nodes[0]["NodeAddr"],
    )


def preempted(job: Job) -> bool:
    """Whether Slurm has asked the job to make room for another, and gives it time for that.

    If it ends by itself meanwhile, Slurm takes it for done.
    """
    told = _job(job.number)
    return told["JobState"] == "RUNNING" and told.get("PreemptTime", "").strip("0").isdigit()


def requeue(job: Job) -> str | None:
    """Have the job run again, from its beginning; None, or why Slurm does not."""
    try:
        run("scontrol", "requeue", str(job.number))
    except ParbenchError as error:
        return str(error)
    return None


def _job(number: int) -> dict[str, str]:
    """A job's fields, times as seconds since 1970."""
    return fields(run("scontrol", "show", "job", str(number), "--oneliner"))
