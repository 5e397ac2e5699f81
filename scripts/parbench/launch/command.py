"""The commands of a cell: the one that a user types, and what each of its ranks runs."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from parbench.cell import Cell, Pair
from parbench.data import pretrained
from parbench.deploy import apptainer, images
from parbench.launch.devices import Lent

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

    def typed(self) -> str:
        """The command that runs it, to paste."""
        words = [sys.executable, _shown(SCRIPTS / "launch.py"), "--cell", str(self.cell_path)]
        words += ["--data", str(self.data), "--out", str(self.out), "--log", str(self.log)]
        return shlex.join(words)


@dataclass(frozen=True)
class Command:
    """What every rank of a cell runs, in which environment.

    A rank's own variables get ``prefix``: those of a process inside an image come in by another
    name.
    """

    words: list[str]
    environment: dict[str, str]
    prefix: str = ""

    def of_rank(self, rank: int, per_node: int, world_size: int) -> dict[str, str]:
        """Its own variables; see ``place``."""
        place_of = place(rank, per_node, world_size)
        return {self.prefix + name: value for name, value in place_of.items()}


def place(rank: int, per_node: int, world_size: int) -> dict[str, str]:
    """The variables that tell a rank its place among ``world_size`` ranks, ``per_node`` a node."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % per_node),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(per_node),
    }


def of_side(
    task: Task,
    number: int,
    lent: Lent,
    image: Path | None,
    state: Path,
    variables: Mapping[str, str],
) -> Command:
    """The command of each rank of a side of ``task``'s cell on the devices ``lent``: a cell that is
    no pair has one side, and is trained.

    ``image`` is what the ranks run in, None for this environment; ``variables`` go with those of
    the side; ``state`` is the side's own folder.
    """
    cell, several = task.cell.sides[number], len(task.cell.sides) > 1
    program = "turns.py" if several else "train.py"
    words = [apptainer.PYTHON if image else sys.executable, _shown(SCRIPTS / program)]
    words += ["--cell", str(task.cell_path), "--data", str(task.data)]
    words += ["--side", str(number)] if several else ["--out", str(task.out)]
    inside = {**_variables(cell, lent), **variables}
    if image is None:
        return Command(words, {**os.environ, **inside})
    weights = pretrained.folder(cell, task.data)
    places = (task.cell_path.parent, task.data, task.folder, *([weights] if weights else []))
    words, outside = apptainer.enter(
        apptainer.probe(),
        image,
        words,
        # /dev/shm: ranks of one node talk through it, each in a container of its own.
        binds=[*images.work_folders(*places), Path("/dev/shm"), state],  # noqa: S108
        variables=inside,
        gpu=cell.hardware.device == "cuda",
        temporary=state if cell.hardware.nodes == 1 else None,
        folder=Path.cwd(),
    )
    return Command(words, {**apptainer.clean_environment(), **outside}, "APPTAINERENV_")


def _variables(cell: Cell, lent: Lent) -> dict[str, str]:
    # Beside a GPU 1: more threads would run on cores that are lent to others.
    threads = str(cell.hardware.threads)
    found = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
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
