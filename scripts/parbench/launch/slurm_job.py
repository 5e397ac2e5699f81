"""The Slurm job that this process runs in: how its ranks are started, and when it ends.

The executor's job steps keep SLURM_JOB_ID and little else; the rest is asked of the controller.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from parbench.cell import Cell
from parbench.errors import ParbenchError
from parbench.files import write_json
from parbench.launch.command import SCRIPTS, Command
from parbench.launch.ranks import Program

SECONDS = 60  # for an answer: a controller may be busy, or just starting again
TRIES = 5


@dataclass(frozen=True)
class Job:
    """A Slurm job. ``ends``: time.time() at the end of its walltime; ``made_for`` is the comment
    that its submitter gave it; ``hosts`` the machine of each of its nodes, ``address`` the first
    node's, as Slurm knows it.
    """

    number: int
    nodes: tuple[str, ...] = ()
    ends: float | None = None
    cpus_per_task: int = 1
    restarts: int = 0
    made_for: str = ""
    hosts: Mapping[str, str] = field(default_factory=dict)
    address: str = ""

    @property
    def here(self) -> list[str]:
        """Its nodes that are the machine of the first one, where this process runs."""
        return [node for node in self.nodes if self.hosts[node] == self.hosts[self.nodes[0]]]


def current() -> Job | None:
    """The job of this process; None outside of Slurm. ParbenchError without Slurm's answer."""
    told = os.environ.get("SLURM_JOB_ID", "")
    if not told.isdigit() or shutil.which("srun") is None:
        return None
    status, text = _ask("scontrol", "show", "job", told, "--oneliner")
    fields = _fields(text)
    if status != 0 or "NodeList" not in fields:
        raise ParbenchError(
            f"this is job {told} of Slurm, of which scontrol says: {text.strip()}; run it again"
        )
    listed = fields["NodeList"]
    nodes = {}
    for line in _ask("scontrol", "show", "node", listed, "--oneliner")[1].splitlines():
        node = _fields(line)
        nodes[node["NodeName"]] = node
    first = next(iter(nodes.values()))
    return Job(
        int(told),
        tuple(nodes),
        _seconds(fields),
        int(re.match(r"\d*", fields.get("CPUs/Task", ""))[0] or 1),
        int(fields.get("Restarts", "0")),
        fields.get("Comment", ""),
        {name: node.get("NodeHostName", name) for name, node in nodes.items()},
        first.get("NodeAddr", first["NodeName"]),
    )


def programs(
    job: Job, cell: Cell, per_node: int, made: Command, state: Path, environment: Mapping[str, str]
) -> dict[int, Program]:
    """The one program that starts all ranks of ``cell``: srun, one task a rank.

    Each task enters the image by itself, as scripts/rank.py (``made.words``), and finds what it
    is in a file in ``state``. Nodes that are this machine share the cores in ``environment``.
    """
    nodes = cell.hardware.nodes
    world_size = nodes * per_node
    name = f"{made.prefix}PARBENCH_CORES"
    lent = environment.get(name, "").split(",")
    each = max(1, len(lent) // len(job.here[:nodes]))
    variables = []
    for rank in range(world_size):
        own = made.of_rank(rank, per_node, world_size)
        node = job.nodes[rank // per_node]
        if nodes > 1:  # on other machines Slurm's own binding counts
            index = job.here.index(node) if node in job.here else None
            first = 0 if index is None else index * each % len(lent)
            own[name] = "" if index is None else ",".join(lent[first : first + each])
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
    kept = {k: v for k, v in environment.items() if not re.match(r"SLURM_(?!CONF$)|SRUN_", k)}
    return {-1: Program(words, kept)}


def ends(job: Job) -> float | None:
    """time.time() at the end of the job's walltime, as it stands now: it may have been extended."""
    status, text = _ask("scontrol", "show", "job", str(job.number), "--oneliner")
    return _seconds(_fields(text)) if status == 0 else job.ends


def preempted(job: Job) -> bool:
    """Whether Slurm has asked the job to make room for another, and gives it time for that.

    If it ends by itself meanwhile, Slurm takes it for done.
    """
    fields = _fields(_ask("scontrol", "show", "job", str(job.number), "--oneliner")[1])
    told = fields.get("PreemptTime", "None")
    return fields.get("JobState") == "RUNNING" and told not in ("None", "Unknown", "N/A", "0")


def requeue(job: Job) -> str | None:
    """Have the job run again, from its beginning; None, or why Slurm does not."""
    status, text = _ask("scontrol", "requeue", str(job.number))
    return None if status == 0 else text.strip() or f"scontrol ended with status {status}"


def _fields(text: str) -> dict[str, str]:
    return dict(re.findall(r"(?:^|\s)([\w/:]+)=(\S*)", text))


def _seconds(fields: Mapping[str, str]) -> float | None:
    told = fields.get("EndTime", "")
    return float(told) if told.isdigit() else None


def _ask(*words: str) -> tuple[int, str]:
    """A program of Slurm: its status, and what it printed; asked again while nobody answers."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    for _ in range(TRIES):
        try:
            done = subprocess.run(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            continue
        if done.returncode == 0:
            return 0, done.stdout
        if not re.search("contact|communication", done.stderr, re.I):  # a controller that restarts
            return done.returncode, done.stderr
        time.sleep(1.0)
    return 1, f"{words[0]}: no answer from Slurm"
