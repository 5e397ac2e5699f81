"""Compose a cell's commands: the one that a user can paste, and those that start its ranks."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from parbench import interpreter as interpreters
from parbench import strategies
from parbench.cell import Cell, Pair
from parbench.data import pretrained
from parbench.deploy import apptainer, containers
from parbench.files import write_json
from parbench.launch.devices import LockedDevices
from parbench.launch.ranks import RankCommand
from parbench.launch.slurm_job import Job
from parbench.training.launched import place
from parbench.variables import PROGRAM, STEADY, clean

INFINIBAND = Path("/dev/infiniband")
OURS_MIB = 256  # of a Slurm job's memory on each node, kept for Snakemake and the launcher


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
        """Return the command that runs the cell, ready to paste."""
        command = [sys.executable, _shown(PROGRAM), "launch", "--cell", str(self.cell_path)]
        command += ["--data", str(self.data), "--out", str(self.out), "--log", str(self.log)]
        return shlex.join(command)


def programs(
    task: Task,
    number: int,
    job: Job | None,
    locked: LockedDevices,
    image: Path | None,
    state: Path,
    variables: Mapping[str, str],
) -> dict[int, RankCommand]:
    """Return the programs that start the ranks of side ``number`` of the cell of ``task``.

    The result is one program per rank or, within a Slurm ``job``, a single srun. A cell that is not
    a pair has one side. ``locked``: the side's devices; ``image``: None for the host's environment;
    ``variables``: added to the environment of all ranks; ``state``: the side's folder.
    """
    cell, is_pair = task.cell.sides[number], len(task.cell.sides) > 1
    python = cell.run.python
    interpreter = apptainer.PYTHON if image else python or sys.executable
    command = [interpreter, _shown(PROGRAM), "turns" if is_pair else "train"]
    command += ["--cell", str(task.cell_path), "--data", str(task.data)]
    command += ["--side", str(number)] if is_pair else ["--out", str(task.out)]
    added, prefix = {**_variables(cell, locked), **variables}, ""
    environment = (clean() if python is None else interpreters.environment(python)) | added
    if image is not None:
        weights = pretrained.folder(cell, task.data)
        folders = (task.cell_path.parent, task.data, task.folder, *([weights] if weights else []))
        command, environment = apptainer.enter(
            image,
            command,
            binds=[*containers.work_folders(*folders), *_devices_of_ranks(cell), state],
            variables=added,
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
        return {
            rank: RankCommand(command, environment | rank_variables)
            for rank, rank_variables in enumerate(ranks)
        }
    if cell.hardware.nodes > 1:
        for rank, rank_variables in enumerate(ranks):
            rank_variables[f"{prefix}PARBENCH_CORES"] = _cores_on(
                job, rank // per_node, locked, cell
            )
    write_json(state / "ranks.json", {"command": command, "variables": ranks})
    command = [*_srun(job, cell, per_node), str(state / "ranks.json"), prefix]
    # srun would take the job's own variables as options of this step.
    srun_environment = {
        k: v for k, v in environment.items() if not re.match(r"SLURM_(?!CONF$)|SRUN_", k)
    }
    return {-1: RankCommand(command, srun_environment)}


def _srun(job: Job, cell: Cell, per_node: int) -> list[str]:
    """Return the srun command that starts all ranks of ``cell``, one task per rank.

    Each task runs `parbench rank`, which reads its command and variables from a file.
    """
    nodes = cell.hardware.nodes
    cpus = max(1, job.cpus_per_task // per_node)
    command = ["srun", f"--jobid={job.number}", f"--nodes={nodes}", f"--ntasks={nodes * per_node}"]
    command += [f"--ntasks-per-node={per_node}", "--distribution=block", f"--cpus-per-task={cpus}"]
    if nodes == 1:
        command += [f"--nodelist={os.environ.get('SLURMD_NODENAME', job.nodes[0])}"]
    if cell.hardware.device == "cuda":
        command += ["--gpu-bind=none"]  # every rank sees its peers
    # The limit of the step is below that of the job: if ranks that need too much memory reached the
    # job's limit, the launcher might be killed, too, and Slurm would count the job as failed.
    ours = min(OURS_MIB, job.memory_mib // 2)
    command += [f"--mem={job.memory_mib - ours}M" if ours else "--mem=0"]
    # The step shares its resources with the batch step; the first rank to fail ends all others.
    command += ["--overlap", "--mpi=none", "--kill-on-bad-exit=1", "--wait=0"]
    return [*command, sys.executable, str(PROGRAM), "rank"]


def _cores_on(job: Job, number: int, locked: LockedDevices, cell: Cell) -> str:
    """Return the cores of the ranks on node ``number``, empty where Slurm's binding applies.

    Nodes that are really this machine (in tests) divide the cores that it holds.
    """
    if (node := job.nodes[number]) not in job.nodes_here:
        return ""
    cores_per_node = max(1, len(locked.cores) // len(job.nodes_here[: cell.hardware.nodes]))
    first = job.nodes_here.index(node) * cores_per_node % len(locked.cores)
    return ",".join(locked.cores[first : first + cores_per_node])


def _devices_of_ranks(cell: Cell) -> list[Path]:
    """Return the device files through which ranks in separate images communicate.

    These are shared memory and, for GPUs, InfiniBand if the machine has it.
    """
    devices = [Path("/dev/shm")]  # noqa: S108
    if cell.hardware.device == "cuda" and INFINIBAND.exists():
        devices.append(INFINIBAND)
    return devices


def _variables(cell: Cell, locked: LockedDevices) -> dict[str, str]:
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    count = cell.hardware.threads
    if cell.hardware.device == "cuda":  # fewer cores than configured may be locked
        count = max(1, min(count, len(locked.cores) // strategies.of(cell).ranks_per_node))
    variables = {
        **dict.fromkeys(threads, str(count)),
        **STEADY,
        "PYTHONUNBUFFERED": "1",
        "PYTHONUTF8": "1",  # for the log, whatever the terminal's encoding
        "PYTHONHASHSEED": "0",
        "PARBENCH_CORES": ",".join(locked.cores),
    }
    if cell.hardware.device == "cuda":  # the site's settings of its network apply in images, too
        variables |= {k: value for k, value in os.environ.items() if k.startswith("NCCL_")}
    if cell.hardware.nodes == 1:
        # Over loopback, independent of firewalls, VPNs and name servers.
        interface_variables = ("GLOO_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME")
        variables |= dict.fromkeys(interface_variables, "lo")
        if cell.hardware.device == "cuda":  # on several nodes Slurm sets it
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(locked.gpus)
    return variables


def _shown(path: Path) -> str:
    """Return ``path`` relative to the working folder if it lies below it."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
