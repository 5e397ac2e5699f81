"""The commands of a cell: the one that a user types, and what each of its ranks runs."""

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
        """The cell's own."""
        return self.out.parent

    @property
    def nodes(self) -> int:
        """How many it needs."""
        return max(side.hardware.nodes for side in self.cell.sides)

    def typed(self) -> str:
        """The command that runs it, to paste."""
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
    """What starts the ranks of a side of ``task``'s cell: this process itself or, within a ``job``
    of Slurm, srun. A cell that is no pair has one side, and is trained.

    ``lent``: its devices; ``image`` is what the ranks run in, None for this environment;
    ``variables`` go with those of the side; ``state`` is the side's own folder.
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
            # /dev/shm: ranks of one node talk through it, each in a container of its own.
            binds=[*images.work_folders(*places), Path("/dev/shm"), state],  # noqa: S108
            variables=inside,
            gpu=cell.hardware.device == "cuda",
            temporary=state if cell.hardware.nodes == 1 else None,
            folder=Path.cwd(),
        )
        prefix = "APPTAINERENV_"  # of variables that a process inside an image finds
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
    # What the job was asked for is not what this step is.
    kept = {k: v for k, v in environment.items() if not re.match(r"SLURM_(?!CONF$)|SRUN_", k)}
    return {-1: Program(words, kept)}


def _srun(job: Job, cell: Cell, per_node: int) -> list[str]:
    """srun, which starts all ranks of ``cell``, one task a rank.

    Each task enters the image by itself, as scripts/rank.py, and finds what it is in a file.
    """
    nodes = cell.hardware.nodes
    cpus = max(1, job.cpus_per_task // per_node)
    words = ["srun", f"--jobid={job.number}", f"--nodes={nodes}", f"--ntasks={nodes * per_node}"]
    words += [f"--ntasks-per-node={per_node}", "--distribution=block", f"--cpus-per-task={cpus}"]
    if nodes == 1:
        words += [f"--nodelist={os.environ.get('SLURMD_NODENAME', job.nodes[0])}"]
    if cell.hardware.device == "cuda":
        words += ["--gpu-bind=none"]  # every rank sees its peers
    # All that the job has, also beside its batch step; the first rank that fails ends all.
    words += ["--mem=0", "--overlap", "--mpi=none", "--kill-on-bad-exit=1", "--wait=0"]
    return [*words, sys.executable, str(SCRIPTS / "rank.py")]


def _cores_on(job: Job, number: int, lent: Lent, cell: Cell) -> str:
    """The cores of ranks on a node of several: nodes that are this machine share those it lent, on
    others Slurm's own binding counts."""
    if (node := job.nodes[number]) not in job.here:
        return ""
    each = max(1, len(lent.cores) // len(job.here[: cell.hardware.nodes]))
    first = job.here.index(node) * each % len(lent.cores)
    return ",".join(lent.cores[first : first + each])


def _variables(cell: Cell, lent: Lent) -> dict[str, str]:
    # Beside a GPU 1: more threads would run on cores that are lent to others.
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    found = dict.fromkeys(threads, str(cell.hardware.threads)) | {
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        "PARBENCH_CORES": ",".join(lent.cores),
    }
    if cell.hardware.nodes == 1:
        # One node talks over its loopback: no firewall, VPN or name server stands in between.
        names = ("GLOO_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME")
        found |= dict.fromkeys(names, "lo")
        if cell.hardware.device == "cuda":  # of several nodes Slurm says it
            found["CUDA_VISIBLE_DEVICES"] = ",".join(lent.gpus)
    return found


def _shown(path: Path) -> str:
    """``path`` as seen from the working folder, where it lies below it."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
