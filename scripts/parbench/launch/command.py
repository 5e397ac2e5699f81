"""The command of a cell: the one place where it is made."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from parbench import machine, strategies
from parbench.cell import Cell
from parbench.data import pretrained
from parbench.deploy import apptainer, images
from parbench.errors import ParbenchError
from parbench.launch.devices import Lent
from parbench.measure.environment import host

SCRIPTS = Path(__file__).resolve().parents[2]  # holds the programs


@dataclass(frozen=True)
class Command:
    """What every rank of a cell runs, and the variables that they share.

    A rank's own variables get ``prefix``: those of a process inside an image come in by another
    name.
    """

    words: list[str]
    variables: dict[str, str]
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


def of_cell(
    cell: Cell,
    *,
    cell_path: Path,
    data: Path,
    out: Path,
    lent: Lent,
    image: Path | None = None,
    variables: Mapping[str, str] | None = None,
    state: Path | None = None,
    temporary: Path | None = None,
) -> Command:
    """The command that trains ``cell`` on the devices ``lent``.

    ``image`` is what the ranks run in, None for this environment; ``variables`` go with those of
    the cell; ``state`` is the run's own folder, ``temporary`` an image's /tmp.
    """
    words = [apptainer.PYTHON if image else sys.executable, shown_path(SCRIPTS / "train.py")]
    words += ["--cell", str(cell_path), "--data", str(data), "--out", str(out)]
    inside = {**_environment(cell, lent), **(variables or {})}
    if image is None:
        return Command(words, inside)
    weights = pretrained.folder(cell, data)
    places = (cell_path.parent, data, out.parent, *([weights] if weights else []))
    # /dev/shm: ranks of one node talk through it, each in a container of its own.
    binds = [*images.work_folders(*places), Path("/dev/shm"), *([state] if state else [])]  # noqa: S108
    words, outside = apptainer.enter(
        apptainer.probe(),
        image,
        words,
        binds=binds,
        variables=inside,
        gpu=cell.hardware.device == "cuda",
        temporary=temporary,
        folder=Path.cwd(),
    )
    return Command(words, outside, "APPTAINERENV_")


def shown(
    cell: Cell, *, cell_path: Path, data: Path, out: Path, wanted: images.Image | None = None
) -> str:
    """One line for a shell that trains ``cell`` without locks, log or watch."""
    hardware = cell.hardware
    if hardware.nodes > 1:
        raise ParbenchError(
            f"{cell_path}: hardware.nodes is {hardware.nodes}: no line for one shell trains it; "
            "scripts/launch.py does, in a Slurm job of as many nodes"
        )
    usable = [str(core) for core in machine.usable_cores()]
    if hardware.device == "cpu":
        number = hardware.devices * hardware.threads
        cores = tuple(usable[index % len(usable)] for index in range(number))
        lent = Lent(cores, cores)
    else:
        found = machine.usable_gpus(hardware.gpu_model)[: hardware.devices]
        lent = Lent(tuple(found), ())
    # Only in an image: elsewhere train.py sees for itself what it writes down.
    told = {"PARBENCH_HOST": json.dumps(host(images.known(wanted)))} if wanted else {}
    paths = {"cell_path": cell_path, "data": data, "out": out}
    made = of_cell(cell, **paths, lent=lent, image=wanted and wanted.entry, variables=told)
    variables = dict(made.variables)
    if not lent.devices:  # for a machine with GPUs: let it choose
        variables = {k: v for k, v in variables.items() if not k.endswith("CUDA_VISIBLE_DEVICES")}
    world_size = strategies.of(cell).ranks_per_node
    line = apptainer.shown(made.words, variables)
    if world_size == 1:
        return line
    place = {**made.of_rank(0, world_size, world_size), f"{made.prefix}PARBENCH_STORE": "$store"}
    place |= dict.fromkeys((f"{made.prefix}RANK", f"{made.prefix}LOCAL_RANK"), "$rank")
    told_ranks = " ".join(f'{name}="{value}"' for name, value in place.items())
    store = f"store=$(mktemp -u -p {shlex.quote(str(out.absolute().parent))})"
    ranks = " ".join(map(str, range(world_size)))
    return f'{store}; for rank in {ranks}; do {told_ranks} {line} & done; wait; rm -f "$store"*'


def _environment(cell: Cell, lent: Lent) -> dict[str, str]:
    # Beside a GPU 1: more threads would run on cores that are lent to others.
    threads = str(cell.hardware.threads)
    found = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
    }
    if lent.cores:
        found["PARBENCH_CORES"] = ",".join(lent.cores)
    if cell.hardware.device == "cuda" and cell.hardware.nodes == 1:  # else Slurm says it
        found["CUDA_VISIBLE_DEVICES"] = ",".join(lent.devices)
    if cell.hardware.nodes == 1:
        # One node talks over its loopback: no firewall, VPN or name server stands in between.
        names = ("GLOO_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME")
        found |= dict.fromkeys(names, "lo")
    return found


def shown_path(path: Path) -> str:
    """``path`` as seen from the working folder, where it lies below it."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def environment_of(made: Command) -> dict[str, str]:
    """The whole environment in which the words of ``made`` are started."""
    outside = apptainer.clean_environment() if made.prefix else os.environ
    return {**outside, **made.variables}
