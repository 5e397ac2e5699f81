"""The host's environment: made by uv from a stack's lock file, and Horovod, compiled for it.

Environments lie in `$PARBENCH_CACHE/envs/`, outside the clone, and are named by what they are made
from (lock file, Python), so that another lock file is another environment. One appears under its
name when it is whole. Horovod, which no registry offers as a wheel for today's torch, is compiled
once, kept in `$PARBENCH_CACHE/wheels/` and added where something asks for it; where that is
impossible, the reason is written into the environment and everything else goes on.

Standard library only: this runs on a bare Python. Progress goes to standard error.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import NoReturn

from parbench import cache
from parbench.cache import say
from parbench.deploy import uv
from parbench.errors import ParbenchError
from parbench.files import digest, read_json, sha256_file, write_atomically, write_json

ROOT = Path(__file__).resolve().parents[3]
RECIPE = ROOT / "containers" / "build_horovod.py"
LAYOUT = 2  # raised when this program makes environments that older ones cannot stand for


def locks(stack: str) -> Path:
    """The folder of a stack's lock files."""
    folder = ROOT / "containers" / "locks" / stack
    if not (folder / "host.txt").is_file():
        raise ParbenchError(f"stack {stack!r}: there is no {folder / 'host.txt'}")
    return folder


def python_identity() -> list[str]:
    """Which compiled packages this Python and machine take."""
    abi = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
    return [abi, sysconfig.get_platform()]


def environment_folder(stack: str) -> Path:
    """Where the environment of ``stack`` is, or will be, for the Python that runs this."""
    identity = [LAYOUT, sha256_file(locks(stack) / "host.txt"), python_identity()]
    return cache.folder() / "envs" / f"{stack}-{digest(identity)[:12]}"


def is_whole(folder: Path) -> bool:
    """Whether an environment is there, with its interpreter, which is a link to the system's."""
    return os.access(folder / "bin" / "python", os.X_OK)


# ---------------------------------------------------------------- packages


def ensure(stack: str) -> Path:
    """Set up the environment of ``stack`` unless it is there, and return its folder.

    Concurrent calls build once; what an interrupted one left is rebuilt. Raises ParbenchError.
    """
    folder = environment_folder(stack)
    if not is_whole(folder):
        with cache.locked(folder.with_name(f"{folder.name}.lock"), str(folder)):
            if not is_whole(folder):
                _set_up(folder, stack)
    return folder


def _set_up(folder: Path, stack: str) -> None:
    started = time.monotonic()
    say(f"setting up the environment of the stack {stack} in {folder} (once; some 5 GB: half a"
        " minute, or as long as fetching them takes)")  # fmt: skip
    packages = [str(locks(stack) / "host.txt")]
    if cache.BUNDLE.is_dir():
        wheels = str(cache.BUNDLE / "wheels")
        packages = ["--no-index", "--find-links", wheels, str(cache.BUNDLE / f"{stack}.txt")]
    program = uv.program(locks(stack) / "host.txt")
    work = folder.with_name(f".{folder.name}")
    for left in (work, folder):  # of one that was killed; one whose interpreter is gone
        shutil.rmtree(left, ignore_errors=True)
    # Its programs find their interpreter from where they lie: it is renamed when it is whole.
    words = ["venv", "--relocatable", "--prompt", "parbench", "--python", sys.executable]
    uv.run(program, [*words, str(work)])
    words = ["pip", "sync", "--require-hashes", "--python", str(work / "bin" / "python")]
    uv.run(program, [*words, *packages])
    os.rename(work, folder)
    say(f"the environment is ready ({time.monotonic() - started:.0f} s)")


# ---------------------------------------------------------------- Horovod


def horovod_gpu() -> str:
    """`$PARBENCH_HOROVOD_GPU`: none (the default: Gloo only) or nccl."""
    value = os.environ.get("PARBENCH_HOROVOD_GPU") or "none"
    if value not in ("none", "nccl"):
        raise ParbenchError(
            f"PARBENCH_HOROVOD_GPU is {value!r}; set it to none or nccl, or unset it"
        )
    return value


def ensure_horovod(stack: str, *, retry: bool = False) -> None:
    """Add Horovod to the environment of ``stack``, or keep there why it cannot be had.

    Where that is known, it is tried again only when ``retry`` asks for it.
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
                say(f"Horovod is not available: {state['reason']}; all else goes on without it; "
                    f"make env tries again (the build log: {place / 'build.log'})")  # fmt: skip


def horovod_state(folder: Path) -> dict | None:
    """What an environment says of its Horovod: {available, version, gpu} or a reason; None: nothing
    was tried yet.
    """
    path = folder / "horovod.json"
    return read_json(path) if path.exists() else None


def horovod_place(stack: str) -> Path:
    """The folder of the compiled Horovod of the stack's environment, by all that it depends on."""
    host, lock_file = locks(stack) / "host.txt", locks(stack) / "horovod.txt"
    torch = re.search(r"^torch==(\S+)", host.read_text("utf-8"), re.MULTILINE)
    gpu, version = horovod_gpu(), torch[1] if torch else "none"
    files = [sha256_file(path) for path in (lock_file, RECIPE)]
    key = digest([*files, version, python_identity(), gpu])
    return cache.folder() / "wheels" / f"horovod-torch{version}-{gpu}-{key[:12]}"


def horovod_wheel(place: Path) -> Path | None:
    """The wheel in ``place``, if it is there: it is put there when it is whole."""
    return next(iter(place.glob("horovod-*.whl")), None)


def _add_horovod(folder: Path, place: Path, stack: str) -> dict:
    """Compile the wheel unless it is there, and install it. Returns what the plan asks for."""
    python = str(folder / "bin" / "python")
    if horovod_wheel(place) is None:
        if cache.BUNDLE.is_dir():
            reason = "the machine that wrote bundle/ had none, and compiling it needs a network"
            return {"available": False, "reason": reason}
        say("compiling Horovod for this torch (once; 2 to 5 minutes on two cores)")
        command = [python, str(RECIPE), "--lock", str(locks(stack) / "horovod.txt")]
        command += ["--gpu", horovod_gpu(), "--out", str(place)]
        done = subprocess.run(
            command, env=uv.clean_environment(), stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            reason = done.stdout.strip() or f"{RECIPE.name} ended with {done.returncode}"
            return {"available": False, "reason": reason}
    wheel = horovod_wheel(place)
    words = ["pip", "install", "--no-deps", "--no-index", "--reinstall", "--python", python]
    uv.run(folder / "bin" / "uv", [*words, str(wheel)])
    return {"available": True, "version": wheel.name.split("-")[1], "gpu": horovod_gpu()}


# ---------------------------------------------------------------- what few need


def more(stack: str) -> list[str]:
    """Names of the lock files with packages that few studies need."""
    usual = {"host", "torch", "report", "horovod"}
    return sorted({path.stem for path in locks(stack).glob("*.txt")} - usual)


def ensure_more(name: str, stack: str) -> None:
    """Add packages that few studies need, those of ``name``.txt, to the environment of ``stack``,
    where the stack has them."""
    folder, lock = environment_folder(stack), locks(stack) / f"{name}.txt"
    there = folder / f"{name}.sha256"

    def known() -> bool:
        return there.is_file() and there.read_text("utf-8") == sha256_file(lock)

    if not lock.is_file() or cache.BUNDLE.is_dir() or known():
        return
    with cache.locked(folder.with_name(f"{folder.name}.lock"), str(folder)):
        if not known():
            say(f"adding the packages of {lock.name} to the environment (once)")
            words = ["pip", "install", "--require-hashes", "--no-deps"]
            words += ["--python", str(folder / "bin" / "python")]
            uv.run(folder / "bin" / "uv", [*words, "--requirements", str(lock)])
            write_atomically(there, sha256_file(lock))
    importlib.invalidate_caches()


# ---------------------------------------------------------------- exec


def execute(folder: Path, command: list[str]) -> NoReturn:
    """Become ``command``, run in the environment."""
    program = shutil.which(command[0], path=str(folder / "bin")) or shutil.which(command[0])
    if program is None:
        raise ParbenchError(f"{command[0]}: no such program, neither in {folder} nor on PATH")
    environment = uv.clean_environment() | {"VIRTUAL_ENV": str(folder)}
    environment["PATH"] = os.pathsep.join([str(folder / "bin"), os.environ.get("PATH", "")])
    os.execve(program, command, environment)  # noqa: S606


def release_stale_lock(folder: Path) -> None:
    """Let Snakemake release its lock on this folder where the Snakemake that held it was killed.

    ParbenchError where one may still work, here or on the machine that shares the disk and began
    the last run: `snakemake --quiet all` would end without a word.
    """
    state, here = Path(".snakemake"), platform.node()
    host = state / "parbench.host"
    if any((state / "locks").glob("*")):
        if _snakemake_works():
            raise ParbenchError(
                f"{Path.cwd()}: another run works in this folder; wait for its end, or use a "
                "second checkout"
            )
        if host.exists() and (other := host.read_text("utf-8")) != here:
            raise ParbenchError(
                f"{Path.cwd()}: the last run began on {other} and holds the lock; if it works no "
                "more: snakemake --unlock"
            )
        say("an earlier run was killed; releasing its lock on this folder")
        command = [str(folder / "bin" / "python"), "-m", "snakemake", "--unlock", "--quiet"]
        subprocess.run(command, stdout=2, check=False)
    state.mkdir(exist_ok=True)
    write_atomically(host, here)


def _snakemake_works() -> bool:
    """Whether a Snakemake is running in this folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or ended meanwhile
            if (process / "cwd").resolve() == Path.cwd():
                words = (process / "cmdline").read_bytes().split(b"\0")[:4]
                if any(word.endswith(b"snakemake") for word in words):
                    return True
    return False
