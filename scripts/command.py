"""The command of a cell: the one place where it is made."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import apptainer
import images
import lease
import machine
import measure
import pretrained
import strategies
from errors import ParbenchError


def command(
    cell: dict,
    *,
    cell_path: Path,
    data: Path,
    out: Path,
    devices: list[str],
    image: Path | None = None,
    variables: Mapping[str, str] | None = None,
    state: Path | None = None,
    temporary: Path | None = None,
    node: strategies.Node | None = None,
) -> tuple[list[str], dict[str, str]]:
    """The command that trains ``cell`` on ``devices``, and the environment variables it needs.

    ``devices`` are core numbers or UUIDs of GPUs, as a lease gives them; ``image`` is what the
    cell runs in, None for this environment; ``variables`` go with those of the cell; ``state`` is
    the run's own folder, ``temporary`` an image's /tmp; ``node`` is which of several nodes this
    one is. The parts of the command stand in the order in which programs start each other.
    """
    strategy = strategies.load(cell["strategy"]["name"])
    words = strategy.launcher(cell, apptainer.PYTHON if image else sys.executable, node)
    words += [shown_path(Path(__file__).with_name("train.py"))]
    words += ["--cell", str(cell_path), "--data", str(data), "--out", str(out)]
    inside = {**_environment(cell, devices, node), **(variables or {})}
    if image is None:
        return words, inside
    weights = pretrained.folder(cell, data)
    places = (cell_path.parent, data, out.parent, *([weights] if weights else []))
    folders = images.work_folders(*places)
    return apptainer.enter(
        apptainer.probe(),
        image,
        words,
        binds=[*folders, *([state] if state else [])],
        variables=inside,
        gpu=cell["hardware"]["device"] == "cuda",
        temporary=temporary,
        folder=Path.cwd(),
    )


def shown_command(
    cell: dict, *, cell_path: Path, data: Path, out: Path, wanted: images.Image | None = None
) -> str:
    """One line for a shell that trains ``cell`` without leases, log or watch."""
    hardware = cell["hardware"]
    if hardware["nodes"] > 1:
        raise ParbenchError(
            f"{cell_path}: hardware.nodes is {hardware['nodes']}: no line for one shell trains it; "
            "scripts/launch.py does, in a Slurm job of as many nodes"
        )
    if hardware["device"] == "cpu":
        usable = [str(core) for core in lease.usable_cores()]
        devices = [usable[index % len(usable)] for index in range(machine.cores_of(hardware))]
    else:
        devices = lease.usable_gpus(hardware["gpu_model"])[: hardware["devices"]]
    # Only in an image: elsewhere train.py sees for itself what it writes down.
    told = {"PARBENCH_HOST": json.dumps(measure.host(images.known(wanted)))} if wanted else {}
    words, variables = command(
        cell,
        cell_path=cell_path,
        data=data,
        out=out,
        devices=devices,
        image=wanted and wanted.entry,
        variables=told,
    )
    if not devices:  # for a machine with GPUs: let it choose
        variables = {k: v for k, v in variables.items() if not k.endswith("CUDA_VISIBLE_DEVICES")}
    return apptainer.shown(words, variables)


def _environment(cell: dict, devices: list[str], node: strategies.Node | None) -> dict[str, str]:
    on_cpu = cell["hardware"]["device"] == "cpu"
    # Beside a GPU 1: more threads would run on leased cores.
    threads = str(cell["hardware"]["threads"])
    # One node talks over its loopback: no firewall, VPN or name server stands in between.
    interface = node.interface if node else "lo"
    return {
        "PARBENCH_CORES" if on_cpu else "CUDA_VISIBLE_DEVICES": ",".join(devices),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        "GLOO_SOCKET_IFNAME": interface,
        "HOROVOD_GLOO_IFACE": interface,
        "NCCL_SOCKET_IFNAME": interface,
    }


def shown_path(path: Path) -> str:
    """``path`` as seen from the working folder, where it lies below it."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
