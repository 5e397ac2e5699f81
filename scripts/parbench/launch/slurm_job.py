"""Describe the Slurm job that this process runs in, and requeue it.

The executor's job steps have hardly any variable but SLURM_JOB_ID; scontrol reports the rest.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from parbench.cache import print_message
from parbench.errors import ParbenchError
from parbench.launch import slurm_cluster

UNKNOWN = "Invalid job id specified"  # Slurm's message for a job that it has forgotten
ENDED = (
    *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE"),
    *("OUT_OF_MEMORY", "REVOKED"),
)


@dataclass(frozen=True)
class Job:
    """A Slurm job.

    ``ends``: time.time() at the end of its walltime; ``cell``: the cell that it was submitted for,
    None if it was for something else; ``alone``: whether it has all cores of its nodes, so that no
    other job runs there; ``hosts``: {node: host name}; ``address``: of the first node;
    ``memory_mib``: its memory on each node, 0 if the site does not limit it.
    """

    number: int
    ends: float | None
    cpus_per_task: int
    cell: str | None
    alone: bool
    hosts: Mapping[str, str]
    address: str
    memory_mib: int

    @property
    def nodes(self) -> list[str]:
        """The names of its nodes; this process runs on the first."""
        return list(self.hosts)

    @property
    def nodes_here(self) -> list[str]:
        """The nodes that are the same machine as the first (several only in tests)."""
        return [node for node in self.nodes if self.hosts[node] == self.hosts[self.nodes[0]]]


def current() -> Job | None:
    """Return the job of this process; None outside Slurm.

    A shell that outlives its job, as in tmux, still has the job's number, but counts as outside.
    Raises ParbenchError if Slurm does not answer.
    """
    job_id = os.environ.get("SLURM_JOB_ID", "")
    if not job_id.isdigit() or shutil.which("srun") is None:
        return None
    try:
        job = _job(int(job_id))
    except ParbenchError as error:
        if UNKNOWN not in str(error):
            raise
        job = {"JobState": "unknown to Slurm"}
    if (state := job["JobState"]) in (*ENDED, "unknown to Slurm"):
        print_message(
            f"SLURM_JOB_ID names job {job_id}, which is {state}: cells run as outside Slurm"
        )
        return None
    output = _run("scontrol", "show", "node", job["NodeList"], "--oneliner")
    nodes = [slurm_cluster.fields(line) for line in output.splitlines()]
    return Job(
        number=int(job_id),
        ends=float(job["EndTime"]) if job["EndTime"].isdigit() else None,
        cpus_per_task=int(re.sub(r"\D.*", "", job.get("CPUs/Task", "")) or 1),
        cell=cell_of(job.get("StdOut", ""), job.get("Comment", "")),
        alone=int(job["NumCPUs"]) >= sum(map(slurm_cluster.cores, nodes))
        and job.get("OverSubscribe") != "YES",
        hosts={node["NodeName"]: node["NodeHostName"] for node in nodes},
        address=nodes[0]["NodeAddr"],
        memory_mib=_memory_mib(job) // len(nodes),
    )


def _memory_mib(job: Mapping[str, str]) -> int:
    """Return the memory of a job on all of its nodes."""
    found = re.search(r"\bmem=([\d.]+)([MGT])", job.get("AllocTRES", job.get("TRES", "")))
    return int(float(found[1]) * 1024 ** "MGT".index(found[2])) if found else 0


def preempted(job: Job) -> bool:
    """Return whether the job is being preempted and is still in its grace time.

    A job that exits by itself within that time counts as completed: Slurm does not requeue it.
    """
    details = _job(job.number)
    return details["JobState"] == "RUNNING" and details.get("PreemptTime", "").strip("0").isdigit()


def requeue(job: Job) -> str | None:
    """Requeue the job; return None, or why Slurm refuses."""
    try:
        _run("scontrol", "requeue", str(job.number))
    except ParbenchError as error:
        return str(error)
    return None


def cell_of(log: str, comment: str) -> str | None:
    """Return the cell that Snakemake's plugin submitted a job for; None for any other job.

    The plugin names rule and cell twice, and a site may rewrite either: its log is
    ``.../rule_<rule>/<cell>/<job>.log``, its comment ``rule_<rule>_wildcards_<cell>``.
    """
    found = re.search(r"/rule_\w+/([^/]+)/[^/]+$", log) or re.fullmatch(
        r"rule_\w+?_wildcards_(.+)", comment
    )
    return found and found[1]


def _job(number: int) -> dict[str, str]:
    """Return the fields of a job; times are seconds since 1970."""
    output = _run("scontrol", "show", "job", str(number))
    # From this field on, each one is on a separate line and may contain blanks.
    head, mark, rest = output.partition("   Command=")
    lines = re.findall(r"^\s*(\w+)=(.*?)\s*$", mark + rest, re.MULTILINE)
    return slurm_cluster.fields(head) | dict(lines)


def _run(*command: str) -> str:
    advice = "; outside of a job: unset SLURM_JOB_ID"
    return slurm_cluster.run(*command, patience=slurm_cluster.JOB_SECONDS, advice=advice)
