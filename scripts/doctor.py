"""What this machine can run, what each missing thing costs, and the command that mends it.

Works with a bare Python, before anything is set up. Exit status 1 when something is missing that
even the quickstart needs, else 0.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # `python -I` leaves it out

import argparse
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from errors import ParbenchError, run_main
from files import read_json
from finding import LIMITED, MISSING, OK, Finding, table

if TYPE_CHECKING:
    from apptainer import Apptainer

GIB_FOR_RESULTS = 1
GIB_OF_IMAGES = 20  # of a stack in the cache: files and folders
GIB_OF_MEMORY = 4
PROBE_SECONDS = 10


def examine() -> list[Finding]:
    """All checks, in the order in which they are worth reading."""
    python = _python()
    if python.essential:
        return [python]  # what follows is written for a newer Python
    return [
        python,
        _pip(),
        *_disk(),
        _memory(),
        _cores(),
        _accelerators(),
        _compiler(),
        *_environment(),
        *_apptainer(),
        _slurm(),
        _git(),
        _browser(),
    ]


# ---------------------------------------------------------------- the checks


def _python() -> Finding:
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.hexversion >= 0x030B0000:
        return Finding("Python", OK, found)
    return Finding(
        "Python",
        MISSING,
        found,
        "nothing runs: 3.11 or newer is needed",
        "sudo apt install python3.11 python3.11-venv; then: make PYTHON=python3.11 report",
        essential=True,
    )


def _pip() -> Finding:
    if importlib.util.find_spec("ensurepip"):
        return Finding("pip", OK, "comes with this Python")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return Finding(
        "pip",
        LIMITED,
        "this Python comes without one",
        "the set-up fetches pip itself, from the index that pip.conf or PIP_INDEX_URL names",
        f"sudo apt install {version}-venv",
    )


def _disk() -> Iterator[Finding]:
    import cache
    import environment

    need = GIB_FOR_RESULTS if _ready_environment() else environment.GIB_NEEDED
    places = [
        ("disk, work folder", Path.cwd(), GIB_FOR_RESULTS, "run in a folder on a larger disk"),
        ("disk, cache", cache.folder(), need, "export PARBENCH_CACHE=<a folder on a larger disk>"),
    ]
    for check, folder, gib, mend in places:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(existing).free / 2**30
        found = f"{free:.0f} GiB free in {folder}"
        if not os.access(existing, os.W_OK):
            costs = f"nothing runs: {existing} may not be written"
            yield Finding(check, MISSING, found, costs, mend, essential=True)
        elif free < gib:
            costs = f"nothing runs: {gib} GiB are needed"
            yield Finding(check, MISSING, found, costs, mend, essential=True)
        else:
            yield Finding(check, OK, found)


def _memory() -> Finding:
    import machine

    gib = machine.describe()["memory_mib"] / 1024
    if gib >= GIB_OF_MEMORY:
        return Finding("memory", OK, f"{gib:.0f} GiB")
    costs = f"below {GIB_OF_MEMORY} GiB cells of several processes may end as out_of_memory"
    return Finding("memory", LIMITED, f"{gib:.1f} GiB", costs, "add memory, or raise the job's")


def _cores() -> Finding:
    import machine

    cores = machine.cores()
    found = f"{cores} of {os.cpu_count()} may be used ({machine.describe()['cpu']})"
    if cores >= 2:
        return Finding("cores", OK, found)
    return Finding(
        "cores",
        LIMITED,
        found,
        "cells on cpu2 (GPipe [1,1], DDP, Horovod) are rows 'not run: needs 2 cores'",
        "run where there are two; in a job: sbatch --cpus-per-task=2",
    )


def _accelerators() -> Finding:
    import machine

    found = machine.describe()["accelerators"]
    if found:
        cards = ", ".join(f"{card['name']} ({card['memory_mib']} MiB)" for card in found)
        visible = sum(machine.available()["cuda"].values())
        state = OK if visible == len(found) else LIMITED
        hidden = "" if state == OK else f"; CUDA_VISIBLE_DEVICES leaves {visible}"
        return Finding(
            "accelerators",
            state,
            f"{cards}, driver {found[0]['driver']}{hidden}",
            "" if state == OK else "cells use only those that are left",
            "" if state == OK else "unset CUDA_VISIBLE_DEVICES",
        )
    costs = "cells on GPUs are rows 'not run: needs ...'; the quickstart needs none"
    if _nvidia_on_the_bus():
        found_text = "an NVIDIA device without a working driver"
        return Finding("accelerators", MISSING, found_text, costs, "sudo apt install nvidia-driver")
    mend = "run on a machine that has some"
    return Finding("accelerators", MISSING, "none", costs, mend)


def _nvidia_on_the_bus() -> bool:
    for device in Path("/sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
        except OSError:
            continue
        if vendor.strip() == "0x10de" and kind.startswith("0x03"):
            return True
    return False


def _compiler() -> Finding:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    compiler = _first(os.environ.get("CXX", "").split()[:1] or ["c++", "g++", "clang++"])
    packages = []
    if compiler is None:
        packages.append("g++")
    if shutil.which("make") is None:
        packages.append("make")
    if not header.is_file():
        packages.append(f"{version}-dev")
    if not packages:
        return Finding("compiler", OK, f"{_first_line([compiler, '--version'])}, make, Python.h")
    return Finding(
        "compiler",
        MISSING,
        f"lacking: {', '.join(packages)}",
        "Horovod cannot be compiled: its cells are rows 'not run'; all else goes on",
        f"sudo apt install {' '.join(packages)}",
    )


def _ready_environment() -> Path | None:
    import environment

    folder = environment.environment_folder("current")
    return folder if (folder / ".complete").is_file() else None


def _environment() -> Iterator[Finding]:
    folder = _ready_environment()
    if folder is None:
        costs = "the first `make report` or `make test` takes some minutes longer, once"
        mend = "make report"
        yield Finding("environment", LIMITED, "not set up yet", costs, mend)
        yield Finding("Horovod", LIMITED, "not compiled yet", "the same", mend)
        return
    yield Finding("environment", OK, str(folder))
    try:
        state = dict(read_json(folder / "horovod.json"))
    except (ParbenchError, TypeError, ValueError) as error:
        state = {"reason": str(error)}
    if state.get("available"):
        gpu = "Gloo and NCCL" if state.get("gpu") == "nccl" else "Gloo"
        yield Finding("Horovod", OK, f"{state.get('version')}, {gpu}")
    else:
        yield Finding(
            "Horovod",
            MISSING,
            state.get("reason") or "no reason recorded",
            "its cells are rows 'not run' with this reason",
            "python3 scripts/environment.py ensure --retry-horovod",
        )


def _apptainer() -> Iterator[Finding]:
    import apptainer

    found = apptainer.probe()
    costs = "cells run in this machine's own environment"
    if found.trouble is not None:
        state = MISSING if found.program is None else LIMITED
        trouble = found.trouble.removesuffix(found.mend).rstrip(" ;.")
        yield Finding("Apptainer", state, trouble, costs, found.mend)
    else:
        yield _building(found, costs)
        yield _disk_of_images()
    if _works(["unshare", "--user", "--map-root-user", "true"]):
        yield Finding("user namespaces", OK, "may be created")
    else:
        mend = "sudo sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000"
        if Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").exists():
            mend = "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
        costs = "Apptainer runs and builds images only as full root, or installed set-uid"
        yield Finding("user namespaces", MISSING, "may not be created", costs, mend)
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
        yield Finding("/dev/fuse", OK, "may be opened")
    except OSError as error:
        costs = "no image file can be mounted: images run unpacked in the cache, their default"
        mend = "sudo modprobe fuse; sudo chmod 666 /dev/fuse"
        yield Finding("/dev/fuse", MISSING, error.strerror, costs, mend)


def _building(found: Apptainer, costs: str) -> Finding:
    """Apptainer runs images here: how, and whether it builds them."""
    import system

    text = f"{found.version} ({found.program}), runs images"
    text += " in a user namespace" if "--userns" in found.flags else ""
    text += ", unpacked to folders" if found.unpacked else ""
    lacks = system.lacking_to_build()
    if not lacks:
        return Finding("Apptainer", OK, f"{text}, builds them")
    return Finding(
        "Apptainer",
        LIMITED,
        f"{text}, cannot build them: no {lacks[0].what}",
        f"{costs}, unless its images are in the cache or given (docs/images.md)",
        lacks[0].mend,
    )


def _disk_of_images() -> Finding:
    import cache

    images = cache.folder() / "images"
    existing = next(path for path in (images, *images.parents) if path.exists())
    free = shutil.disk_usage(existing).free / 2**30
    found = f"{free:.0f} GiB free in {images}"
    if any(images.glob("horovod-*.sif")):  # the last that is built: the others are there as well
        return Finding("disk, images", OK, f"{found}, which holds images")
    if free >= GIB_OF_IMAGES:
        return Finding("disk, images", OK, found)
    return Finding(
        "disk, images",
        LIMITED,
        found,
        f"the images of a stack take about {GIB_OF_IMAGES} GiB, unpacked; building them will stop",
        "export PARBENCH_CACHE=<a folder on a larger disk>, or deployment: host in config.yaml",
    )


def _slurm() -> Finding:
    costs = "cells run on this machine: `snakemake --profile slurm` cannot be used"
    if shutil.which("sbatch") is None:
        mend = "run on a login node"
        if ours := _system("slurm"):
            mend += f"; Slurm's programs, for a cluster of one's own: {ours}"
        return Finding("Slurm", MISSING, "no sbatch on PATH", costs, mend)
    if not _works(["sinfo", "--noheader"]):
        mend = "ask the cluster's operators; try: sinfo"
        return Finding("Slurm", LIMITED, "sbatch, but no answer from a cluster", costs, mend)
    version = _first_line(["sbatch", "--version"])
    return Finding("Slurm", OK, f"{version}; what it offers: python scripts/doctor.py --slurm")


def _system(part: str) -> str:
    """The command that installs a part of the system, where there is one."""
    return f"sudo make system ARGS={part}" if shutil.which("apt-get") else ""


def _git() -> Finding:
    if shutil.which("git"):
        return Finding("git", OK, _first_line(["git", "--version"]))
    costs = "results do not name the commit that they were made with"
    return Finding("git", MISSING, "not on PATH", costs, "sudo apt install git")


def _browser() -> Finding:
    packages = {
        "chromium": "chromium",
        "chromedriver": "chromium-driver",
        "pdftotext": "poppler-utils",
    }
    lacking = [name for name in packages if shutil.which(name) is None]
    if not lacking:
        return Finding("browser, for tests", OK, "chromium, chromedriver, pdftotext")
    mend = _system("chromium") or f"install {', '.join(packages[name] for name in lacking)}"
    costs = "the tests that open the report in a browser are skipped; reports need none"
    return Finding("browser, for tests", MISSING, f"no {', '.join(lacking)}", costs, mend)


# ---------------------------------------------------------------- asking programs


def _first(names: list[str]) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)


def _run(command: list[str]) -> subprocess.CompletedProcess | None:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _works(command: list[str]) -> bool:
    done = _run(command)
    return done is not None and done.returncode == 0


def _first_line(command: list[str]) -> str:
    done = _run(command)
    lines = done.stdout.strip().splitlines() if done else []
    return lines[0] if lines else f"{command[0]}, which does not say its version"


# ---------------------------------------------------------------- the program


def _cluster(configfiles: list[str]) -> list[Finding]:
    """What this site's Slurm offers to each hardware of the configuration."""
    slurm = _slurm()
    if slurm.state != OK:
        return [replace(slurm, state=MISSING, essential=True)]
    if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
        folder = _ready_environment()
        if folder is None or Path(sys.prefix) == folder:
            raise ParbenchError("--slurm needs parbench's environment (stack current): make env")
        python = str(folder / "bin" / "python")
        os.execv(python, [python, *sys.argv])  # noqa: S606  (the same words, another Python)
    import slurm_site

    return list(slurm_site.examine(configfiles))


def main() -> int:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument(
        "--slurm",
        action="store_true",
        help="each hardware's sbatch line, and what this site's Slurm makes of it; submits nothing",
    )
    parser.add_argument(
        "--configfile", action="append", default=[], help="with --slurm: laid over config.yaml"
    )
    arguments = parser.parse_args()
    findings = _cluster(arguments.configfile) if arguments.slurm else examine()
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        print(table(findings))
    return int(any(f.state == MISSING and f.essential for f in findings))


if __name__ == "__main__":
    run_main(main)
