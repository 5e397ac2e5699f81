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
import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from parbench import cache
from parbench.cache import say
from parbench.deploy import uv
from parbench.errors import ParbenchError
from parbench.files import digest, read_json, sha256_file, write_atomically, write_json

ROOT = Path(__file__).resolve().parents[3]
RECIPE = ROOT / "containers" / "build_horovod.py"
LAYOUT = 2  # raised when this program makes environments that older ones cannot stand for
GIB_NEEDED = 8  # torch with its CUDA libraries is 5.4 GB unpacked, and uv holds the archives
COULD_NOT_FETCH = 3  # status of RECIPE: nothing is known about the compiler yet


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

    Two at once build once; what an interrupted one left is made anew. Raises ParbenchError.
    """
    folder = environment_folder(stack)
    if is_whole(folder):
        return folder
    with _locked(folder) as lock:
        if not is_whole(folder):
            started = time.monotonic()
            _set_up(folder, stack, lock)
            say(f"the environment is ready ({time.monotonic() - started:.0f} s)")
    return folder


def _set_up(folder: Path, stack: str, lock: int) -> None:
    version = platform.python_version()
    say(f"setting up the environment of the stack {stack} for Python {version} in {folder}"
        " (once; some 5 GB)")  # fmt: skip
    if cache.BUNDLE.is_dir():
        _check_bundle(stack)
    free = shutil.disk_usage(folder.parent).free / 2**30
    if free < GIB_NEEDED:
        raise ParbenchError(uv.disk_message(folder.parent, f"needs {GIB_NEEDED}"))
    for old in [folder, *folder.parent.glob(f".{folder.name}.*")]:  # of one that was killed
        shutil.rmtree(old, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        program = uv.program(locks(stack) / "host.txt")
        # Its programs find their interpreter from where they lie: it is renamed when it is whole.
        words = ["venv", "--quiet", "--relocatable", "--allow-existing", "--prompt", "parbench"]
        uv.run(program, [*words, "--python", sys.executable, str(work)], lock)
        words = ["pip", "sync", "--require-hashes", "--python", str(work / "bin" / "python")]
        uv.run(program, [*words, *_source(stack)], lock)
        work.chmod(0o755)
        os.rename(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _source(stack: str) -> list[str]:
    """The packages to install, and where from, as options of uv."""
    host = locks(stack) / "host.txt"
    count = len(re.findall(r"^[A-Za-z0-9][^\s=]*==", host.read_text("utf-8"), re.MULTILINE))
    bundled = cache.BUNDLE.is_dir()
    place = "bundle/wheels and nowhere else" if bundled else "the package registry"
    say(f"installing {count} packages from {place}, each checked by SHA-256")
    if not bundled:
        return [str(host)]
    wheels = str(cache.BUNDLE / "wheels")
    return ["--no-index", "--find-links", wheels, str(cache.BUNDLE / f"{stack}.txt")]


def _check_bundle(stack: str) -> None:
    """ParbenchError where bundle/ was damaged on its way, or is for another Python or stack."""
    python = (cache.BUNDLE / "python").read_text("utf-8").strip()
    if python != f"python{sys.version_info.major}.{sys.version_info.minor}":
        raise ParbenchError(
            f"bundle/ holds packages for {python}, this is Python {platform.python_version()}: "
            f"install {python}, then: make report PYTHON={python} (or write the bundle with this "
            "machine's Python: make bundle PYTHON=...)"
        )
    if not (cache.BUNDLE / f"{stack}.txt").is_file():
        raise ParbenchError(
            f"bundle/ holds no packages of the stack {stack}; write another bundle, or, on a "
            "machine with a network, delete the folder bundle/"
        )
    say("checking bundle/ by SHA-256 (once)")
    command = ["sha256sum", "--check", "--quiet", "--strict", "bundle/SHA256SUMS"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        first = (done.stdout + done.stderr).strip().splitlines()[0]
        raise ParbenchError(
            f"{first}: the archive was damaged on its way; unpack it again (tar xf)"
        )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Hold the lock of what ``folder`` will be; yields its descriptor, which children inherit."""
    path = folder.with_name(f"{folder.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ParbenchError(f"{path}: {error.strerror}; {cache.mend()}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process makes {folder}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    except OSError as error:
        if error.errno not in uv.DISK_FULL:
            raise
        raise ParbenchError(uv.disk_message(folder.parent, "needs more")) from None
    finally:
        os.close(handle)


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

    A build that failed is tried again when the compiler, make or Python.h changed, when what it
    needs could not be fetched, or when ``retry`` asks for it.
    """
    folder, lock_file = environment_folder(stack), locks(stack) / "horovod.txt"
    place = horovod_place(stack)
    asked = {"wheel": place.name, "toolchain": _toolchain()}

    def known() -> bool:
        state = horovod_state(folder)
        if state is None or state["wheel"] != asked["wheel"]:
            return False
        return state["available"] or (state.get("toolchain") == asked["toolchain"] and not retry)

    if known():
        return
    with _locked(place) as lock:
        if known():
            return
        state = _add_horovod(folder, place, lock_file, lock) | {"wheel": asked["wheel"]}
        if not state["available"] and not state.pop("again"):
            state["toolchain"] = asked["toolchain"]
        write_json(folder / "horovod.json", state)
    if not state["available"]:
        say(f"Horovod is not available: {state['reason']}; everything else goes on without it"
            f" (the whole build log: {place / 'build.log'})")  # fmt: skip


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
    files = [sha256_file(path) for path in (lock_file, RECIPE) if path.is_file()]
    key = digest([*files, version, python_identity(), gpu])
    return cache.folder() / "wheels" / f"horovod-torch{version}-{gpu}-{key[:12]}"


def horovod_wheel(place: Path) -> Path | None:
    """The wheel in ``place``, if it is there: it is put there when it is whole."""
    return next(iter(place.glob("horovod-*.whl")), None)


def _toolchain() -> list:
    """The compiler, make and Python's headers, without starting any of them."""
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    names = [os.environ.get("CXX") or "c++", "g++", "make"]
    return [*(os.path.realpath(shutil.which(name) or "/") for name in names), header.is_file()]


def _add_horovod(folder: Path, place: Path, lock_file: Path, lock: int) -> dict:
    """Compile the wheel unless it is there, and install it. Returns what the plan asks for."""
    lacking = {"available": False, "again": False}
    if not lock_file.is_file():
        return lacking | {"reason": f"the stack {lock_file.parent.name} has no Horovod"}
    if horovod_wheel(place) is None:
        if cache.BUNDLE.is_dir():
            reason = "the machine that wrote bundle/ had none, and compiling it needs a network"
            return lacking | {"reason": reason}
        say("compiling Horovod for this torch (once; 2 to 5 minutes on two cores)")
        command = [str(folder / "bin" / "python"), str(RECIPE), "--lock", str(lock_file)]
        done = subprocess.run(
            [*command, "--gpu", horovod_gpu(), "--out", str(place)],
            env=uv.clean_environment(),
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(lock,),
            check=False,
        )
        if done.returncode:
            reason = done.stdout.strip() or f"{RECIPE.name} ended with {done.returncode}"
            return lacking | {"reason": reason, "again": done.returncode == COULD_NOT_FETCH}
    words = ["pip", "install", "--quiet", "--no-deps", "--no-index", "--reinstall", "--python"]
    wheel = horovod_wheel(place)
    uv.run(folder / "bin" / "uv", [*words, str(folder / "bin" / "python"), str(wheel)], lock)
    return {"available": True, "version": wheel.name.split("-")[1], "gpu": horovod_gpu()}


# ---------------------------------------------------------------- exec


def execute(folder: Path, command: list[str]) -> None:
    """Become ``command``, run in the environment. Never returns."""
    program = shutil.which(command[0], path=str(folder / "bin")) or shutil.which(command[0])
    if program is None:
        raise ParbenchError(f"{command[0]}: no such program, neither in {folder} nor on PATH")
    environment = uv.clean_environment() | {"VIRTUAL_ENV": str(folder)}
    environment["PATH"] = os.pathsep.join([str(folder / "bin"), os.environ.get("PATH", "")])
    os.execve(program, command, environment)  # noqa: S606


def release_stale_lock(work: Path, folder: Path) -> None:
    """Let Snakemake release its lock on ``work`` where the Snakemake that held it was killed.

    One that still works there (whose `make` alone was killed, say) is waited for. ParbenchError
    when the lock was taken on another machine, where nobody can be seen from here.
    """
    state = work / ".snakemake"
    holder = state / "parbench.host"
    if any((state / "locks").glob("*")):
        host = holder.read_text("utf-8") if holder.exists() else platform.node()
        if host != platform.node():
            raise ParbenchError(
                f"this folder is locked by a Snakemake on {host}; when that runs no more: snakemake"
                " --unlock"
            )
        if process := _live_snakemake(work):
            say(f"Snakemake already works in this folder (process {process}); waiting for its end"
                f" (to stop it: kill {process})")  # fmt: skip
            while _live_snakemake(work):
                time.sleep(0.5)
        if any((state / "locks").glob("*")):
            say("an earlier run was killed; releasing its lock on this folder")
            command = [str(folder / "bin" / "python"), "-m", "snakemake", "--unlock", "--quiet"]
            subprocess.run(command, cwd=work, stdout=sys.stderr, check=False)
    state.mkdir(exist_ok=True)
    # On a shared disk the holder of a lock may run where its processes cannot be seen.
    write_atomically(holder, platform.node())


def _live_snakemake(work: Path) -> int | None:
    """The process id of a Snakemake that works in ``work``."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or ended meanwhile
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            named = any(Path(word).name == "snakemake" for word in words[:4])
            if named and os.path.realpath(process / "cwd") == os.path.realpath(work):
                return int(process.name)
    return None
