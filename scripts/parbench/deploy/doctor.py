"""Check what this machine can run, what each missing thing costs, and the command that fixes it.

Works on a bare Python, before anything is set up.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from parbench import cache, distribution, machine
from parbench.deploy import apptainer, containers, host_environment, recipes
from parbench.software import Software

OK, LIMITED, MISSING = "ok", "limited", "missing"
GIB_OF_ENVIRONMENT, GIB_OF_IMAGES = 8, 20  # of images: files and folders of a stack


@dataclass(frozen=True)
class Check:
    """One check: what was found and, if something is missing, the consequence and the fix."""

    check: str
    state: str
    found: str
    costs: str = ""
    fix: str = ""
    essential: bool = False  # if it is missing, nothing runs


def table(checks: list[Check]) -> str:
    """Return the checks as text: a line for each, and two more if something is missing."""
    width = max(len(check.check) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.check:<{width}}  {check.state:<7}  {check.found}")
        for label, text in (("costs", check.costs), ("fix", check.fix)):
            if text:
                lines.append(f"{'':<{width}}  {'':<7}  {label + ':':<6} {text}")
    return "\n".join(lines)


def examine() -> Iterator[Check]:
    """Yield all checks, the most important ones first."""
    yield Check("Python", OK, f"{platform.python_version()} ({sys.executable})")
    yield _disk()
    yield _cores()
    yield _accelerators()
    yield _horovod()
    yield _compiler()
    yield _apptainer()
    yield slurm()


# ---------------------------------------------------------------- the checks


def _disk() -> Check:
    folder = cache.folder()
    existing = next(path for path in (folder, *folder.parents) if os.path.isdir(path))
    free = shutil.disk_usage(existing).free / 2**30
    has_environment = host_environment.is_complete(host_environment.environment_folder("current"))
    needed = 1 if has_environment else GIB_OF_ENVIRONMENT
    found, fix = f"{free:.0f} GiB free in {folder}", "export PARBENCH_CACHE=<a folder elsewhere>"
    if free < needed or not os.access(existing, os.W_OK):
        costs = f"nothing runs without a writable folder with {needed} GiB free"
        return Check("disk", MISSING, found, costs, fix, essential=True)
    if free < GIB_OF_IMAGES and not any((folder / "images").glob("*.sif")):
        return Check("disk", LIMITED, found, f"images take {GIB_OF_IMAGES} GiB", fix)
    return Check("disk", OK, found)


def _cores() -> Check:
    cores, described = machine.cores(), machine.describe()
    found = f"{cores} of {os.cpu_count()} are available ({described['cpu']}), "
    found += f"{described['memory_mib'] / 1024:.0f} GiB of memory"
    quota = machine.cpu_quota()
    if quota is not None and quota % 1 > 0.01 and quota < cores + 1:
        found += f"; this container is limited to {quota:.2f} cores"
        if quota < 1:
            costs = "the limit pauses cells while their times are measured"
            return Check("cores", LIMITED, found, costs, "give the container whole cores")
    if cores >= 2:
        return Check("cores", OK, found)
    costs = "cells on cpu2 (GPipe [1,1], DDP, Horovod) become rows 'not run: needs 2 cores'"
    fix = "use a machine with two cores; in a job: sbatch --cpus-per-task=2"
    return Check("cores", LIMITED, found, costs, fix)


def _accelerators() -> Check:
    cards = machine.describe()["accelerators"]
    problem = machine.driver_problem()
    if not cards:
        costs = "cells on GPUs become rows 'not run: needs ...'; the quickstart needs no GPU"
        if problem:
            found = f"NVIDIA's driver is installed but does not answer: {problem}"
            fix = (
                "restart the machine, or have its operators repair the driver: nvidia-smi must work"
            )
            return Check("accelerators", MISSING, found, costs, fix)
        fix = "use a machine with GPUs and NVIDIA's driver"
        return Check("accelerators", MISSING, "none", costs, fix)
    text = ", ".join(f"{card['name']} ({card['memory_mib']} MiB)" for card in cards)
    if problem:
        text += f"; {problem}"
        costs = "cells may fail on accelerators that do not answer"
        return Check("accelerators", LIMITED, text, costs, "see what nvidia-smi says")
    visible = sum(machine.available()["cuda"].values())
    if visible == len(cards):
        return Check("accelerators", OK, f"{text}, driver {cards[0]['driver']}")
    text += f"; CUDA_VISIBLE_DEVICES leaves {visible}"
    costs = "cells use only the visible ones"
    return Check("accelerators", LIMITED, text, costs, "unset CUDA_VISIBLE_DEVICES")


def _horovod() -> Check:
    state = host_environment.horovod_state(host_environment.environment_folder("current"))
    if state and state["available"]:
        gpu = "Gloo and NCCL" if state["gpu"] == "nccl" else "Gloo"
        return Check("Horovod", OK, f"{state['version']}, {gpu}")
    missing = host_environment.horovod_needs()
    if state is None and not missing:
        costs = "the first `make report` of a study with Horovod takes some minutes longer"
        return Check("Horovod", LIMITED, "not compiled yet", costs, "make env ARGS=horovod")
    needed = " and ".join(host_environment.HOROVOD_NEEDS[name] for name in missing)
    found = state["reason"] if state else f"cannot be compiled without {needed}"
    install = f"{distribution.install(*missing)}; " if missing else ""
    costs = "its cells become rows 'not run' with this reason; everything else runs"
    return Check("Horovod", MISSING, found, costs, f"{install}make env ARGS=horovod")


def _compiler() -> Check:
    missing = Software().without_compiler()
    if missing is None:
        return Check("compiler", OK, "C++, for torch.compile")
    found, _, fix = missing.partition(": ")
    costs = "cells that compile become rows 'not run' with this reason, unless they run in images"
    return Check("compiler", MISSING, found, costs, fix)


def _apptainer() -> Check:
    installed = apptainer.probe()
    costs = "cells run in this machine's own environment"
    fix = f"{distribution.system('apptainer')}; docs/images.md"
    if installed.problem is not None:
        return Check("Apptainer", MISSING, installed.problem, costs, fix)
    text = f"{installed.version} ({installed.program}), runs images"
    if (problem := apptainer.cannot_build()) is None:
        waiting = containers.obstacle("current", recipes.ImageSettings())
        return Check("Apptainer", OK, f"{text}, builds them" + f"; {waiting}" * bool(waiting))
    costs += ", unless its images are in the cache (docs/images.md)"
    return Check("Apptainer", LIMITED, f"{text}; {problem}", costs, fix)


def slurm() -> Check:
    """Check whether this machine can submit to a cluster."""
    costs = "cells run on this machine: `snakemake --profile slurm` cannot be used"
    if shutil.which("sinfo") is None:
        return Check("Slurm", MISSING, "no sinfo on PATH", costs, "run on a login node")
    _, problem = machine.output_of(["sinfo", "--noheader"])
    if problem:
        found = f"no cluster answers: {problem}"
        return Check("Slurm", LIMITED, found, costs, "ask the cluster's operators")
    return Check("Slurm", OK, "what a cell would ask for: parbench doctor --slurm")
