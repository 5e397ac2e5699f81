"""Install the host's environment by uv from a stack's lock file, and compile Horovod for it.

Environments are in `$PARBENCH_CACHE/envs/`, outside the clone. Their names contain a digest of lock
file and Python, so that a new lock file makes a new environment, which is renamed when it is
complete. No registry has a Horovod wheel for current torch, so Horovod is compiled once, kept in
`$PARBENCH_CACHE/wheels/` and installed on demand. If it cannot be built, the reason is recorded in
the environment and everything else continues.

Standard library only, since this runs on a bare Python. Progress goes to standard error.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from parbench import cache, distribution, variables
from parbench.cache import print_message
from parbench.deploy import uv
from parbench.errors import ParbenchError
from parbench.files import (
    digest,
    read_record,
    read_text,
    rename_durably,
    sha256_file,
    sync_tree,
    write_atomically,
    write_json,
)
from parbench.printable import masked

ROOT = Path(__file__).resolve().parents[3]
RECIPE = ROOT / "containers" / "build_horovod.py"
HOROVOD_NEEDS = {"compiler": "a C++ compiler", "make": "make", "headers": "Python's headers"}
STARTUP = Path(__file__).with_name("startup.py")
FINDER = Path(__file__).with_name("finder")
# Packages that a machine for an archive of `make bundle ARGS=--bare` must have, and the file that
# marks such an archive.
BARE = ("torch", "torchvision", "numpy", "pandas", "matplotlib")
BARE_MARK = "bare"
LAYOUT = 2  # raise it to stop the use of environments that older versions made


def locks(stack: str) -> Path:
    """Return the folder with the stack's lock files; raise ParbenchError if it does not exist."""
    folder = ROOT / "containers" / "locks" / stack
    if not (folder / "host.txt").is_file():
        raise ParbenchError(f"stack {stack!r}: there is no {folder / 'host.txt'}")
    return folder


def python_identity() -> list[str]:
    """Return what determines which compiled packages fit: the Python ABI and the platform."""
    abi = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
    return [abi, sysconfig.get_platform()]


def environment_folder(stack: str) -> Path:
    """Return the folder of the environment of ``stack`` for this Python; it need not exist."""
    identity = [LAYOUT, sha256_file(locks(stack) / "host.txt"), python_identity()]
    return cache.folder() / "envs" / f"{stack}-{digest(identity)[:12]}"


def is_complete(folder: Path) -> bool:
    """Return whether an environment exists and its link to the system's Python works."""
    return os.access(folder / "bin" / "python", os.X_OK)


# ---------------------------------------------------------------- packages


def ensure(stack: str) -> Path:
    """Set up the environment of ``stack`` unless it exists, and return its folder.

    Concurrent calls build it once; an interrupted build starts again. Raises ParbenchError.
    """
    folder = environment_folder(stack)
    if not is_complete(folder):
        with cache.locked(folder.with_name(f"{folder.name}.lock"), str(folder)):
            if not is_complete(folder):
                _set_up(folder, stack)
    _add_ours(folder)
    return folder


def _add_ours(folder: Path) -> None:
    """Copy parbench's files into an environment that lacks them.

    They are startup.py, with the .pth file that runs it, and the program `parbench`.
    """
    for place in folder.glob("lib/python*/site-packages"):
        _copy(STARTUP.read_text("utf-8"), place / "parbench_startup.py")
        _copy("import parbench_startup\n", place / "parbench_startup.pth")
    _copy(FINDER.read_text("utf-8"), folder / "bin" / "parbench", executable=True)


def _copy(content: str, path: Path, *, executable: bool = False) -> None:
    is_same = path.is_file() and path.read_text("utf-8") == content
    if not is_same or (executable and not os.access(path, os.X_OK)):
        # An environment of another user, which this one may only read, works without the files.
        with contextlib.suppress(OSError):
            write_atomically(path, content)
            path.chmod(path.stat().st_mode | 0o111 * executable)


def _set_up(folder: Path, stack: str) -> None:
    started = time.monotonic()
    if (cache.BUNDLE / BARE_MARK).exists():
        _set_up_bare(folder, stack)
        return
    print_message(
        f"setting up the environment of the stack {stack} in {folder} (once; some 5 GB: half a "
        "minute, or as long as the downloads take)"
    )
    packages = [str(locks(stack) / "host.txt")]
    if cache.BUNDLE.is_dir():
        wheels = str(cache.BUNDLE / "wheels")
        packages = ["--no-index", "--find-links", wheels, str(cache.BUNDLE / f"{stack}.txt")]
    program = uv.program(locks(stack) / "host.txt")
    work = folder.with_name(f".{folder.name}")
    for leftover in (work, folder):  # of a killed build; of an environment whose Python is gone
        shutil.rmtree(leftover, ignore_errors=True)
    # Relocatable, because it is renamed when it is complete.
    arguments = ["venv", "--relocatable", "--prompt", "parbench", "--python", sys.executable]
    uv.run(program, [*arguments, str(work)])
    arguments = ["pip", "sync", "--require-hashes", "--python", str(work / "bin" / "python")]
    uv.run(program, [*arguments, *packages])
    rename_durably(work, folder)
    print_message(f"the environment is ready ({time.monotonic() - started:.0f} s)")


def _set_up_bare(folder: Path, stack: str) -> None:
    """Make an environment that has this Python's packages and those of a bare bundle."""
    python = f"{sys.executable} ({sys.version.split()[0]})"
    wanted = (cache.BUNDLE / "python").read_text("utf-8").strip()
    again = f"type make PYTHON=<the path of a {wanted} that has them> and your target"
    if wanted != f"python{sys.version_info.major}.{sys.version_info.minor}":
        raise ParbenchError(
            f"bundle/ has packages for {wanted}, but this is {python}; {again}, or write the "
            "bundle with make PYTHON=<another> bundle"
        )
    if missing := [name for name in BARE if importlib.util.find_spec(name) is None]:
        raise ParbenchError(f"{python} has no {', '.join(missing)}; {again}")
    print_message(f"adding the packages of bundle/ to those of {python}, in {folder}")
    work = folder.with_name(f".{folder.name}")
    for leftover in (work, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    venv.create(work, system_site_packages=True)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(work), "platbase": str(work)}))
    # This includes the packages of a Python that is itself a virtual environment.
    others = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    own.mkdir(parents=True, exist_ok=True)
    (own / "machine.pth").write_text("".join(f"{other}\n" for other in others), "utf-8")
    arguments = ["install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    arguments += ["--no-compile", "--ignore-installed", "--require-hashes", "--find-links"]
    arguments += [str(cache.BUNDLE / "wheels"), "--requirement", str(cache.BUNDLE / f"{stack}.txt")]
    command = [str(work / "bin" / "python"), "-m", "pip", *arguments]
    if uv.run_masked(command, sys.stderr, env=uv.installer_environment()):
        raise ParbenchError(
            f"pip cannot install the packages of bundle/; see above for the reason; no pip: "
            f"{distribution.install('pip')}"
        )
    rename_durably(work, folder)


# ---------------------------------------------------------------- Horovod


def horovod_gpu() -> str:
    """Return `$PARBENCH_HOROVOD_GPU`: none (the default: Gloo only) or nccl."""
    value = os.environ.get("PARBENCH_HOROVOD_GPU") or "none"
    if value not in ("none", "nccl"):
        raise ParbenchError(
            f"PARBENCH_HOROVOD_GPU is {value!r}; set it to none or nccl, or unset it"
        )
    return value


def _ensure_horovod(stack: str, *, retry: bool) -> None:
    """Install Horovod into the environment of ``stack``, or record in it why that failed.

    ``retry``: try again although a failure is recorded.
    """
    folder, place = environment_folder(stack), horovod_place(stack)

    def known() -> bool:
        state = horovod_state(folder)
        return bool(state and state["wheel"] == place.name and (state["available"] or not retry))

    if known():
        return
    with cache.locked(place.with_name(f"{place.name}.lock"), "Horovod"):
        if not known():
            state = {"wheel": place.name, **_add_horovod(folder, place, stack)}
            write_json(folder / "horovod.json", state)
            if not state["available"]:
                print_message(
                    f"Horovod is not available: {state['reason']}; everything else works "
                    f"without it; make env ARGS=horovod tries again (the build log: "
                    f"{place / 'build.log'})"
                )


def horovod_state(folder: Path) -> dict | None:
    """Return horovod.json of an environment; None if Horovod was not tried yet.

    It holds {available: true, version, gpu} or {available: false, reason}.
    """
    path = folder / "horovod.json"
    return read_record(path, "wheel", "available") if os.path.exists(path) else None


def horovod_place(stack: str) -> Path:
    """Return the folder of the stack's compiled Horovod; its name has a digest of all inputs."""
    host, lock_file = locks(stack) / "host.txt", locks(stack) / "horovod.txt"
    torch = re.search(r"^torch==(\S+)", read_text(host), re.MULTILINE)
    gpu, version = horovod_gpu(), torch[1] if torch else "none"
    files = [sha256_file(path) for path in (lock_file, RECIPE)]
    key = digest([*files, version, python_identity(), gpu])
    return cache.folder() / "wheels" / f"horovod-torch{version}-{gpu}-{key[:12]}"


def horovod_wheel(place: Path) -> Path | None:
    """Return the wheel in ``place``; None if there is no complete one."""
    return next(iter(place.glob("horovod-*.whl")), None)


def horovod_needs() -> list[str]:
    """Return the keys of HOROVOD_NEEDS that this machine lacks."""
    compilers = os.environ.get("CXX", "").split()[:1] or ["c++", "g++"]
    is_there = {
        "compiler": any(map(shutil.which, compilers)),
        "make": shutil.which("make") is not None,
        "headers": Path(sysconfig.get_paths()["include"], "Python.h").is_file(),
    }
    return [name for name, there in is_there.items() if not there]


def _add_horovod(folder: Path, place: Path, stack: str) -> dict:
    """Compile the wheel unless it exists, install it and return the content of horovod.json."""
    python = str(folder / "bin" / "python")
    if horovod_wheel(place) is None:
        if cache.BUNDLE.is_dir():
            reason = (
                "the machine that wrote bundle/ had no Horovod, and compiling it needs a network"
            )
            return {"available": False, "reason": reason}
        if missing := horovod_needs():
            needed = " and ".join(HOROVOD_NEEDS[name] for name in missing)
            reason = f"it needs {needed}; {distribution.install(*missing)}"
            return {"available": False, "reason": reason}
        print_message("compiling Horovod for this torch (once; 2 to 5 minutes on two cores)")
        command = [python, str(RECIPE), "--lock", str(locks(stack) / "horovod.txt")]
        work = place.with_name(f".{place.name}")
        shutil.rmtree(work, ignore_errors=True)  # of a killed build
        command += ["--gpu", horovod_gpu(), "--out", str(work)]
        done = subprocess.run(
            command, env=uv.installer_environment(), stdout=subprocess.PIPE, text=True, check=False
        )
        if work.is_dir():  # with the log, even if the build failed
            log = work / "build.log"
            if log.exists():
                log.write_text(masked(log.read_text("utf-8")), "utf-8")
            shutil.rmtree(place, ignore_errors=True)
            rename_durably(work, place)
        if done.returncode:
            reason = done.stdout.strip() or f"{RECIPE.name} ended with {done.returncode}"
            return {"available": False, "reason": masked(reason)}
    wheel = horovod_wheel(place)
    assert wheel is not None
    arguments = ["pip", "install", "--no-deps", "--no-index", "--reinstall", "--python", python]
    uv.run(folder / "bin" / "uv", [*arguments, str(wheel)])
    sync_tree(folder)
    return {"available": True, "version": wheel.name.split("-")[1], "gpu": horovod_gpu()}


# ---------------------------------------------------------------- what few studies need


def optional(stack: str) -> list[str]:
    """Return the names of packages that can be added to the environment of ``stack``.

    They are horovod and the lock files that only some studies need. A bundle has only Horovod.
    """
    if cache.BUNDLE.is_dir():
        return ["horovod"]
    usual = {"host", "torch", "report"}
    return sorted({path.stem for path in locks(stack).glob("*.txt")} - usual)


def require_optional(names: Iterable[str], stack: str) -> None:
    """Raise ParbenchError if one of ``names`` cannot be added to the environment of ``stack``."""
    known = optional(stack)
    for name in names:
        if name not in known:
            where = "bundle/" if cache.BUNDLE.is_dir() else f"stack {stack}"
            raise ParbenchError(
                f"{where} has no optional packages {name!r}; known: {', '.join(known)}"
            )


def add(names: Iterable[str], stack: str, *, retry: bool = False) -> None:
    """Add optional packages to the environment of ``stack``, unless they are there.

    If Horovod cannot be compiled, the environment keeps the reason, and only ``retry`` tries again.
    Raises ParbenchError.
    """
    for name in names:
        if name == "horovod":
            _ensure_horovod(stack, retry=retry)
        else:
            _ensure_packages(name, stack)
    importlib.invalidate_caches()


def entered() -> str | None:
    """Return the stack whose environment this process runs in; None for any other Python."""
    stacks = (path.parent.name for path in (ROOT / "containers" / "locks").glob("*/host.txt"))
    here = Path(sys.prefix).resolve()
    return next((each for each in stacks if environment_folder(each).resolve() == here), None)


def _ensure_packages(name: str, stack: str) -> None:
    folder, lock = environment_folder(stack), locks(stack) / f"{name}.txt"
    record = folder / f"{name}.sha256"

    def known() -> bool:
        return record.is_file() and record.read_text("utf-8") == sha256_file(lock)

    if known():
        return
    with cache.locked(folder.with_name(f"{folder.name}.lock"), str(folder)):
        if not known():
            print_message(f"adding the packages of {lock.name} to the environment (once)")
            arguments = ["pip", "install", "--require-hashes", "--no-deps"]
            arguments += ["--python", str(folder / "bin" / "python")]
            uv.run(folder / "bin" / "uv", [*arguments, "--requirements", str(lock)])
            sync_tree(folder)
            write_atomically(record, sha256_file(lock))


# ---------------------------------------------------------------- exec


def execute(folder: Path, command: list[str]) -> NoReturn:
    """Replace this process by ``command``, run in the environment."""
    program = shutil.which(command[0], path=str(folder / "bin")) or shutil.which(command[0])
    if program is None:
        raise ParbenchError(f"{command[0]}: no such program, neither in {folder} nor on PATH")
    environment = variables.without_foreign() | {"VIRTUAL_ENV": str(folder)}
    environment["PATH"] = os.pathsep.join([str(folder / "bin"), os.environ.get("PATH", "")])
    os.execve(program, command, environment)  # noqa: S606
