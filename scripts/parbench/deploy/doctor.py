"""What this machine can run, what each missing thing costs, and the command that mends it.

Works with a bare Python, before anything is set up.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from parbench import cache, machine
from parbench.deploy import apptainer, build, environment

OK, LIMITED, MISSING = "ok", "limited", "missing"
GIB_FOR_RESULTS = 1
GIB_OF_IMAGES = 20  # of a stack in the cache: files and folders
GIB_OF_MEMORY = 4
SECONDS = 10
BROWSER = {"chromium": "chromium", "chromedriver": "chromium-driver", "pdftotext": "poppler-utils"}


@dataclass(frozen=True)
class Check:
    """One check: what was found; where that is not all, what it costs and what mends it."""

    check: str
    state: str
    found: str
    costs: str = ""
    mend: str = ""
    essential: bool = False  # missing: nothing runs at all


def table(checks: list[Check]) -> str:
    """The checks for people: one line each, and two more where something is lacking."""
    width = max(len(each.check) for each in checks)
    lines = []
    for each in checks:
        lines.append(f"{each.check:<{width}}  {each.state:<7}  {each.found}")
        for word, text in (("costs", each.costs), ("mend", each.mend)):
            if text:
                lines.append(f"{'':<{width}}  {'':<7}  {word + ':':<6} {text}")
    return "\n".join(lines)


def examine() -> Iterator[Check]:
    """All checks, in the order in which they are worth reading."""
    yield Check("Python", OK, f"{platform.python_version()} ({sys.executable})")
    yield from _disk()
    yield from _machine()
    yield _accelerators()
    yield _compiler()
    yield from _environment()
    yield from _apptainer()
    yield slurm()
    if shutil.which("git"):
        yield Check("git", OK, _first_line(["git", "--version"]))
    else:
        costs = "results do not name the commit that they were made with"
        yield Check("git", MISSING, "not on PATH", costs, "sudo apt install git")
    yield _browser()


# ---------------------------------------------------------------- the checks


def _free(folder: Path) -> tuple[Path, float]:
    """The folder, or the nearest above it that is there, and the GiB free in it."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return existing, shutil.disk_usage(existing).free / 2**30


def _disk() -> Iterator[Check]:
    whole = environment.is_whole(environment.environment_folder("current"))
    need = GIB_FOR_RESULTS if whole else environment.GIB_NEEDED
    for check, folder, gib, mend in (
        ("disk, work folder", Path.cwd(), GIB_FOR_RESULTS, "run in a folder on a larger disk"),
        ("disk, cache", cache.folder(), need, "export PARBENCH_CACHE=<a folder on a larger disk>"),
    ):
        existing, free = _free(folder)
        found = f"{free:.0f} GiB free in {folder}"
        if os.access(existing, os.W_OK) and free >= gib:
            yield Check(check, OK, found)
            continue
        lack = f"{gib} GiB are needed" if free < gib else f"{existing} may not be written"
        yield Check(check, MISSING, found, f"nothing runs: {lack}", mend, essential=True)


def _machine() -> Iterator[Check]:
    described = machine.describe()
    gib = described["memory_mib"] / 1024
    if gib >= GIB_OF_MEMORY:
        yield Check("memory", OK, f"{gib:.0f} GiB")
    else:
        costs = f"below {GIB_OF_MEMORY} GiB cells of several processes may end as out_of_memory"
        mend = "add memory, or raise the job's"
        yield Check("memory", LIMITED, f"{gib:.1f} GiB", costs, mend)
    cores = machine.cores()
    found = f"{cores} of {os.cpu_count()} may be used ({described['cpu']})"
    if cores >= 2:
        yield Check("cores", OK, found)
    else:
        costs = "cells on cpu2 (GPipe [1,1], DDP, Horovod) are rows 'not run: needs 2 cores'"
        mend = "run where there are two; in a job: sbatch --cpus-per-task=2"
        yield Check("cores", LIMITED, found, costs, mend)


def _accelerators() -> Check:
    found = machine.describe()["accelerators"]
    if found:
        cards = ", ".join(f"{card['name']} ({card['memory_mib']} MiB)" for card in found)
        text = f"{cards}, driver {found[0]['driver']}"
        visible = sum(machine.available()["cuda"].values())
        if visible == len(found):
            return Check("accelerators", OK, text)
        text += f"; CUDA_VISIBLE_DEVICES leaves {visible}"
        costs = "cells use only those that are left"
        return Check("accelerators", LIMITED, text, costs, "unset CUDA_VISIBLE_DEVICES")
    costs = "cells on GPUs are rows 'not run: needs ...'; the quickstart needs none"
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    if any(machine.read(vendor).strip() == "0x10de" for vendor in vendors):
        text = "an NVIDIA device without a working driver"
        return Check("accelerators", MISSING, text, costs, "sudo apt install nvidia-driver")
    return Check("accelerators", MISSING, "none", costs, "run on a machine that has some")


def _compiler() -> Check:
    names = os.environ.get("CXX", "").split()[:1] or ["c++", "g++", "clang++"]
    compiler = next(filter(None, map(shutil.which, names)), None)
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    packages = [] if compiler else ["g++"]
    packages += [] if shutil.which("make") else ["make"]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages += [] if header.is_file() else [f"{version}-dev"]
    if not packages:
        return Check("compiler", OK, f"{_first_line([compiler, '--version'])}, make, Python.h")
    costs = "Horovod cannot be compiled: its cells are rows 'not run'; all else goes on"
    lacking = f"lacking: {', '.join(packages)}"
    return Check("compiler", MISSING, lacking, costs, f"sudo apt install {' '.join(packages)}")


def _environment() -> Iterator[Check]:
    folder = environment.environment_folder("current")
    if not environment.is_whole(folder):
        costs = "the first `make report` or `make test` takes some minutes longer, once"
        yield Check("environment", LIMITED, "not set up yet", costs, "make report")
    else:
        yield Check("environment", OK, str(folder))
    state = environment.horovod_state(folder)
    if state is None:
        costs = "the first run of a study with cells of it takes some minutes longer, once"
        yield Check("Horovod", LIMITED, "not compiled yet", costs, "make env")
    elif state["available"]:
        gpu = "Gloo and NCCL" if state["gpu"] == "nccl" else "Gloo"
        yield Check("Horovod", OK, f"{state['version']}, {gpu}")
    else:
        costs = "its cells are rows 'not run' with this reason"
        mend = "python3 scripts/environment.py ensure --retry-horovod"
        yield Check("Horovod", MISSING, state["reason"], costs, mend)


def _apptainer() -> Iterator[Check]:
    found = apptainer.probe()
    costs = "cells run in this machine's own environment"
    if found.trouble is not None:
        state = MISSING if found.program is None else LIMITED
        trouble = found.trouble.removesuffix(found.mend).rstrip(" ;.")
        yield Check("Apptainer", state, trouble, costs, found.mend)
    else:
        text = f"{found.version} ({found.program}), runs images"
        text += " in a user namespace" if "--userns" in found.flags else ""
        text += ", unpacked to folders" if found.unpacked else ""
        lack = apptainer.lacking_subids()
        if build.debootstrap() is None:
            lack = "no debootstrap; sudo make system"
        if lack is None:
            yield Check("Apptainer", OK, f"{text}, builds them")
        else:
            what, _, mend = lack.partition("; ")
            costs += ", unless its images are in the cache or given (docs/images.md)"
            yield Check("Apptainer", LIMITED, f"{text}, cannot build them: {what}", costs, mend)
        yield _disk_of_images()
    if _works(["unshare", "--user", "--map-root-user", "true"]):
        yield Check("user namespaces", OK, "may be created")
    else:
        costs = "Apptainer runs and builds images only as full root, or installed set-uid"
        mend = "sudo sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000"
        if Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").exists():
            mend = "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
        yield Check("user namespaces", MISSING, "may not be created", costs, mend)
    if os.access("/dev/fuse", os.R_OK | os.W_OK):
        yield Check("/dev/fuse", OK, "may be opened")
    else:
        costs = "no image file can be mounted: images run unpacked in the cache, their default"
        mend = "sudo modprobe fuse; sudo chmod 666 /dev/fuse"
        yield Check("/dev/fuse", MISSING, "may not be opened", costs, mend)


def _disk_of_images() -> Check:
    images = cache.folder() / "images"
    free = _free(images)[1]
    found = f"{free:.0f} GiB free in {images}"
    if any(images.glob("horovod-*.sif")):  # the last that is built: the others are there as well
        return Check("disk, images", OK, f"{found}, which holds images")
    if free >= GIB_OF_IMAGES:
        return Check("disk, images", OK, found)
    costs = (
        f"the images of a stack take about {GIB_OF_IMAGES} GiB, unpacked; building them will stop"
    )
    mend = "export PARBENCH_CACHE=<a folder on a larger disk>, or deployment: host in config.yaml"
    return Check("disk, images", LIMITED, found, costs, mend)


def slurm() -> Check:
    """Whether this machine submits to a cluster."""
    costs = "cells run on this machine: `snakemake --profile slurm` cannot be used"
    if shutil.which("sbatch") is None:
        mend = "run on a login node"
        if ours := _system("slurm"):
            mend += f"; Slurm's programs, for a cluster of one's own: {ours}"
        return Check("Slurm", MISSING, "no sbatch on PATH", costs, mend)
    if not _works(["sinfo", "--noheader"]):
        mend = "ask the cluster's operators; try: sinfo"
        return Check("Slurm", LIMITED, "sbatch, but no answer from a cluster", costs, mend)
    version = _first_line(["sbatch", "--version"])
    return Check("Slurm", OK, f"{version}; what it offers: python scripts/doctor.py --slurm")


def _browser() -> Check:
    lacking = [name for name in BROWSER if shutil.which(name) is None]
    if not lacking:
        return Check("browser, for tests", OK, ", ".join(BROWSER))
    packages = ", ".join(BROWSER[name] for name in lacking)
    costs = "the tests that open the report in a browser are skipped; reports need none"
    mend = _system("chromium") or f"install {packages}"
    return Check("browser, for tests", MISSING, f"no {', '.join(lacking)}", costs, mend)


def _system(part: str) -> str:
    """The command that installs a part of the system, where there is one."""
    return f"sudo make system ARGS={part}" if shutil.which("apt-get") else ""


# ---------------------------------------------------------------- asking programs


def _run(command: list[str]) -> subprocess.CompletedProcess | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


def _works(command: list[str]) -> bool:
    done = _run(command)
    return done is not None and done.returncode == 0


def _first_line(command: list[str]) -> str:
    done = _run(command)
    lines = done.stdout.strip().splitlines() if done else []
    return lines[0] if lines else f"{command[0]}, which does not say its version"
