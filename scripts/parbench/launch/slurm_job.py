"""The Slurm job that this process runs in: how its ranks are started, and when it ends.

The executor's job steps keep SLURM_JOB_ID and little else; the rest is asked of the controller.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from parbench.cell import Cell
from parbench.errors import ParbenchError
from parbench.files import write_json
from parbench.launch.command import SCRIPTS, Command
from parbench.launch.ranks import Program
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


def programs(job: Job, cell: Cell, per_node: int, made: Command, state: Path) -> dict[int, Program]:
    """The one program that starts all ranks of ``cell``: srun, one task a rank.

    Each task enters the image by itself, as scripts/rank.py (``made.words``), and finds what it
    is in a file in ``state``. Nodes that are this machine share the cores that ``made`` names.
    """
    nodes = cell.hardware.nodes
    world_size = nodes * per_node
    name = f"{made.prefix}PARBENCH_CORES"
    lent = made.environment[name].split(",")
    each = max(1, len(lent) // len(job.here[:nodes]))
    variables = []
    for rank in range(world_size):
        own = made.of_rank(rank, per_node, world_size)
        if nodes > 1:  # on other machines Slurm's own binding counts
            node, own[name] = job.nodes[rank // per_node], ""
            if node in job.here:
                first = job.here.index(node) * each % len(lent)
                own[name] = ",".join(lent[first : first + each])
        variables.append(own)
    write_json(state / "ranks.json", {"words": made.words, "variables": variables})
    cpus = max(1, job.cpus_per_task // per_node)
    words = ["srun", f"--jobid={job.number}", f"--nodes={nodes}", f"--ntasks={world_size}"]
    words += [f"--ntasks-per-node={per_node}", "--distribution=block", f"--cpus-per-task={cpus}"]
    if nodes == 1:
        words += [f"--nodelist={os.environ.get('SLURMD_NODENAME', job.nodes[0])}"]
    if cell.hardware.device == "cuda":
        words += ["--gpu-bind=none"]  # every rank sees its peers
    # All that the job has, also beside its batch step; the first rank that fails ends all.
    words += ["--mem=0", "--overlap", "--mpi=none", "--kill-on-bad-exit=1", "--wait=0"]
    words += [sys.executable, str(SCRIPTS / "rank.py"), str(state / "ranks.json"), made.prefix]
    # What the job was asked for is not what this step is.
    environment = made.environment.items()
    kept = {k: v for k, v in environment if not re.match(r"SLURM_(?!CONF$)|SRUN_", k)}
    return {-1: Program(words, kept)}


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
