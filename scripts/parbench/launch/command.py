"""The commands of a cell: the one that a user can paste, and those that start its ranks."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from parbench import strategies
from parbench.cell import Cell, Pair
from parbench.data import pretrained
from parbench.deploy import apptainer, images
from parbench.files import write_json
from parbench.launch.devices import Lent
from parbench.launch.ranks import Program, place
from parbench.launch.slurm_job import Job

SCRIPTS = Path(__file__).resolve().parents[2]  # holds the programs


@dataclass(frozen=True)
class Task:
    """One run of one cell, with the files it reads and writes."""

    cell: Cell | Pair
    cell_path: Path
    data: Path
    out: Path
    log: Path

    @property
    def folder(self) -> Path:
        """The cell's folder."""
        return self.out.parent

    @property
    def results(self) -> Path:
        """The folder results/ of this cell."""
        return self.out.absolute().parents[2]

    @property
    def nodes(self) -> int:
        """The number of nodes that the cell needs."""
        return max(side.hardware.nodes for side in self.cell.sides)

    def typed(self) -> str:
        """Return the command that runs it, ready to paste."""
        words = [sys.executable, _shown(SCRIPTS / "launch.py"), "--cell", str(self.cell_path)]
        words += ["--data", str(self.data), "--out", str(self.out), "--log", str(self.log)]
        return shlex.join(words)


def programs(
    task: Task,
    number: int,
    job: Job | None,
    lent: Lent,
    image: Path | None,
    state: Path,
    variables: Mapping[str, str],
) -> dict[int, Program]:
    """Return the programs that start the ranks of side ``number`` of the cell of ``task``.

    That is one program per rank or, within a Slurm ``job``, srun. A cell that is not a pair has a
    single side. ``lent``: the side's devices; ``image``: None for the host's environment;
    ``variables``: added to the environment of all ranks; ``state``: the side's folder.
    """
    cell, several = task.cell.sides[number], len(task.cell.sides) > 1
    program = "turns.py" if several else "train.py"
    words = [apptainer.PYTHON if image else sys.executable, _shown(SCRIPTS / program)]
    words += ["--cell", str(task.cell_path), "--data", str(task.data)]
    words += ["--side", str(number)] if several else ["--out", str(task.out)]
    inside, prefix = {**_variables(cell, lent), **variables}, ""
    environment = {**os.environ, **inside}
    if image is not None:
        weights = pretrained.folder(cell, task.data)
        places = (task.cell_path.parent, task.data, task.folder, *([weights] if weights else []))
        words, environment = apptainer.enter(
            image,
            words,
            # /dev/shm: ranks on one node communicate through it, each in its own container.
            binds=[*images.work_folders(*places), Path("/dev/shm"), state],  # noqa: S108
            variables=inside,
            gpu=cell.hardware.device == "cuda",
            temporary=state if cell.hardware.nodes == 1 else None,
            folder=Path.cwd(),
        )
        prefix = "APPTAINERENV_"  # Apptainer passes these variables into the image
    per_node = strategies.of(cell).ranks_per_node
    world_size = per_node * cell.hardware.nodes
    ranks = [
        {prefix + name: value for name, value in place(rank, per_node, world_size).items()}
        for rank in range(world_size)
    ]
    if job is None:
        return {rank: Program(words, environment | own) for rank, own in enumerate(ranks)}
    if cell.hardware.nodes > 1:
        for rank, own in enumerate(ranks):
            own[f"{prefix}PARBENCH_CORES"] = _cores_on(job, rank // per_node, lent, cell)
    write_json(state / "ranks.json", {"words": words, "variables": ranks})
    words = [*_srun(job, cell, per_node), str(state / "ranks.json"), prefix]
    # srun would take the job's own variables as options of this step.
    kept = {k: v for k, v in environment.items() if not re.match(r"SLURM_(?!CONF$)|SRUN_", k)}
    return {-1: Program(words, kept)}


def _srun(job: Job, cell: Cell, per_node: int) -> list[str]:
    """Return the srun command that starts all ranks of ``cell``, one task per rank.

    Each task runs scripts/rank.py, which reads its command and variables from a file.
    """
    nodes = cell.hardware.nodes
    cpus = max(1, job.cpus_per_task // per_node)
    words = ["srun", f"--jobid={job.number}", f"--nodes={nodes}", f"--ntasks={nodes * per_node}"]
    words += [f"--ntasks-per-node={per_node}", "--distribution=block", f"--cpus-per-task={cpus}"]
    if nodes == 1:
        words += [f"--nodelist={os.environ.get('SLURMD_NODENAME', job.nodes[0])}"]
    if cell.hardware.device == "cuda":
        words += ["--gpu-bind=none"]  # every rank sees its peers
    # All of the job's memory, beside its batch step; the first rank to fail ends all others.
    words += ["--mem=0", "--overlap", "--mpi=none", "--kill-on-bad-exit=1", "--wait=0"]
    return [*words, sys.executable, str(SCRIPTS / "rank.py")]


def _cores_on(job: Job, number: int, lent: Lent, cell: Cell) -> str:
    """Return the cores of the ranks on node ``number``, empty where Slurm's binding applies.

    Nodes that are really this machine (in tests) divide the cores that it holds.
    """
    if (node := job.nodes[number]) not in job.here:
        return ""
    each = max(1, len(lent.cores) // len(job.here[: cell.hardware.nodes]))
    first = job.here.index(node) * each % len(lent.cores)
    return ",".join(lent.cores[first : first + each])


def _variables(cell: Cell, lent: Lent) -> dict[str, str]:
    # hardware.threads is 1 beside a GPU: further threads would use cores of other cells.
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    found = dict.fromkeys(threads, str(cell.hardware.threads)) | {
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        "PARBENCH_CORES": ",".join(lent.cores),
    }
    if cell.hardware.nodes == 1:
        # Over loopback, independent of firewalls, VPNs and name servers.
        names = ("GLOO_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME")
        found |= dict.fromkeys(names, "lo")
        if cell.hardware.device == "cuda":  # on several nodes Slurm sets it
            found["CUDA_VISIBLE_DEVICES"] = ",".join(lent.gpus)
    return found


def _shown(path: Path) -> str:
    """Return ``path`` relative to the working folder if it lies below it."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
