"""Compile Horovod for the torch of a Python environment, and leave a wheel.

    python containers/build_horovod.py --python <the environment's python> --out <folder for the
    wheel>

Horovod's last release (0.28.1, 2023) does not compile against today's torch as it stands. This
program takes exactly that release from the package registry (pip, by hash), patches the few lines
that stand in the way, and builds it with the Gloo back-end, or with NCCL too (``--gpu nccl``). Its
build tools (an older setuptools and CMake) come from the same lock file and never enter the
environment itself.

Standard library only, and no other module of the project: it runs on a bare host and inside an
image's recipe. Standard output is the wheel's path; progress goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

VERSION = "0.28.1"
DEFAULT_LOCK = Path(__file__).resolve().parent / "locks" / "current" / "horovod.txt"
# One g++ on torch's headers takes up to this much memory; fewer jobs run where there is less.
GIB_PER_JOB = 1.5
SECONDS_BETWEEN_LINES = 10

Say = Callable[[str], None]


class BuildError(Exception):
    """Horovod cannot be built here. The message is the reason, on one line."""


class FetchError(BuildError):
    """What the build needs could not be fetched: nothing is known about the compiler yet."""


def build(
    python: str | os.PathLike,
    out: str | os.PathLike,
    *,
    work: str | os.PathLike,
    log: str | os.PathLike,
    lock: str | os.PathLike = DEFAULT_LOCK,
    gpu: str = "none",
    say: Say = lambda text: print(text, file=sys.stderr, flush=True),
) -> Path:
    """Build the wheel for the environment of ``python`` into ``out`` and return its path.

    ``work`` is an empty folder for this build alone; ``log`` receives everything that pip, CMake
    and the compiler say; ``say`` receives the lines for people. Raises BuildError.
    """
    python, out, work, lock = Path(python).absolute(), Path(out), Path(work).absolute(), Path(lock)
    started = time.monotonic()

    def tell(text: str) -> None:
        say(f"Horovod {VERSION}: {text} [{time.monotonic() - started:.0f} s]")

    with open(log, "w", encoding="utf-8", errors="replace") as log_file:
        _require_toolchain(python)
        standard = torch_cxx_standard(python)
        tools = _install_tools(python, lock, work, log_file, tell)
        source = _unpack(_download(python, lock, work, tools, log_file, tell), work)
        patch(source, standard, gloo_only=gpu == "none")
        jobs = _jobs()
        tell(f"compiling, C++{standard}, {jobs} job{'s' if jobs > 1 else ''}")
        environment = _build_environment(python, tools, work, jobs, gpu)
        command = [str(python), "setup.py", "bdist_wheel", "--dist-dir", str(work / "dist")]
        status = _run(command, log_file, cwd=source, env=environment, on_line=_progress(tell))
        wheels = list((work / "dist").glob("*.whl"))
        if status or len(wheels) != 1:
            log_file.flush()
            raise BuildError(first_error(Path(log).read_text(errors="replace"), work))
        _check_wheel(python, wheels[0], work, gpu, log_file)
    out.mkdir(parents=True, exist_ok=True)
    temporary = out / f".{wheels[0].name}.part"
    shutil.copyfile(wheels[0], temporary)
    os.replace(temporary, out / wheels[0].name)
    tell("wheel ready")
    return out / wheels[0].name


# ---------------------------------------------------------------- what must be there


def _require_toolchain(python: Path) -> None:
    if not any(shutil.which(name) for name in compilers()):
        raise BuildError("no C++ compiler was found (Debian and Ubuntu: sudo apt install g++ make)")
    if not shutil.which("make"):
        raise BuildError("make was not found (Debian and Ubuntu: sudo apt install make)")
    header = Path(_ask(python, "import sysconfig; print(sysconfig.get_paths()['include'])"))
    if not (header / "Python.h").is_file():
        version = _ask(python, "import sys; print('python%d.%d' % sys.version_info[:2])")
        raise BuildError(
            f"Python.h is not in {header} (Debian and Ubuntu: sudo apt install {version}-dev)"
        )


def compilers() -> list[str]:
    """Names of C++ compilers in the order in which CMake looks for them."""
    chosen = os.environ.get("CXX", "").split()
    return chosen[:1] or ["c++", "g++", "clang++"]


def torch_cxx_standard(python: str | os.PathLike) -> int:
    """The C++ standard that the headers of the environment's torch ask for (17, or 20 from torch
    2.15 on).
    """
    folder = Path(
        _ask(
            python,
            "import importlib.util as u; s = u.find_spec('torch');"
            " print(s.submodule_search_locations[0] if s else '')",
        )
    )
    header = folder / "include" / "torch" / "csrc" / "api" / "include" / "torch" / "all.h"
    if not header.is_file():
        raise BuildError(f"torch is not installed in the environment of {python}")
    # all.h refuses older compilers by itself: `__cplusplus < 202002L` means C++20.
    years = [int(year) for year in re.findall(r"__cplusplus < 20(\d\d)\d\dL", header.read_text())]
    return max([17, *years])


def _ask(python: str | os.PathLike, code: str) -> str:
    """What a line of Python prints in the environment."""
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise BuildError(f"{python} does not work: {lines[-1]}")
    return done.stdout.strip()


def _jobs() -> int:
    """Compiler processes at once: as many as there are cores, and memory for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return max(1, min(cores or 1, int(memory / GIB_PER_JOB)))


# ---------------------------------------------------------------- what pip fetches


def split_lock(text: str) -> tuple[str, str]:
    """Split a lock file into Horovod's own entry and the entries of its tools."""
    entries = [entry for entry in re.split(r"\n(?=[A-Za-z0-9])", "\n" + text) if "==" in entry]
    own = [entry for entry in entries if entry.startswith("horovod==")]
    if len(own) != 1 or not own[0].startswith(f"horovod=={VERSION} "):
        raise BuildError(f"the lock file must pin horovod=={VERSION} once")
    return own[0], "\n".join(entry for entry in entries if entry is not own[0])


def _install_tools(python: Path, lock: Path, work: Path, log, tell: Say) -> Path:
    tell("fetching the build tools")
    own, others = split_lock(lock.read_text(encoding="utf-8"))
    (work / "horovod.txt").write_text(own + "\n", encoding="utf-8")
    (work / "tools.txt").write_text(others + "\n", encoding="utf-8")
    tools = work / "tools"
    _pip(
        python,
        ["install", "--only-binary=:all:", "--target", str(tools), "-r", str(work / "tools.txt")],
        log,
        os.environ.copy(),
    )
    return tools


def _download(python: Path, lock: Path, work: Path, tools: Path, log, tell: Say) -> Path:
    tell("fetching the source archive")
    # pip asks the archive for its metadata, which takes the older setuptools.
    _pip(
        python,
        [
            *("download", "--no-binary=horovod", "--no-build-isolation"),
            *("--dest", str(work / "source"), "-r", str(work / "horovod.txt")),
        ],
        log,
        {**os.environ, "PYTHONPATH": str(tools)},
    )
    (archive,) = (work / "source").glob("horovod-*.tar.gz")
    return archive


def _pip(python: Path, words: list[str], log, env: dict[str, str]) -> None:
    command = [str(python), "-m", "pip", *words, "--no-deps", "--require-hashes"]
    output: list[str] = []
    if _run([*command, "--disable-pip-version-check"], log, env=env, on_line=output.append):
        errors = [line for line in output if line.startswith("ERROR")] or output[-1:]
        raise FetchError("pip: " + " ".join(errors[:1] or ["no message"]))


def _unpack(archive: Path, work: Path) -> Path:
    """Unpack the archive: plain files and folders inside one folder, and nothing else."""
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = Path(member.name).parts
            if not (member.isfile() or member.isdir()) or ".." in parts or member.name[0] == "/":
                raise BuildError(f"{archive.name} holds {member.name!r}, which is not unpacked")
            member.mode = 0o755 if member.isdir() else 0o644
        # The filter does the same checks once more; Python 3.11.2 does not know it yet.
        options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(work / "source", **options)  # noqa: S202 (every member was checked above)
    return work / "source" / f"horovod-{VERSION}"


# ---------------------------------------------------------------- patches


def patch(source: Path, standard: int, *, gloo_only: bool) -> None:
    """Patch the unpacked source. Raises BuildError where the text to replace is not there exactly
    once.
    """
    edits = [
        # torch's headers ask for a newer C++ than the project sets.
        ("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)"),
        (
            "horovod/torch/CMakeLists.txt",
            "set(CMAKE_CXX_STANDARD 14)",
            f"set(CMAKE_CXX_STANDARD {standard})",
        ),
        # A build folder whose name has blanks.
        (
            "CMakeLists.txt",
            "-Wl,--version-script=${CMAKE_SOURCE_DIR}/horovod.lds",
            r"-Wl,--version-script=\"${CMAKE_SOURCE_DIR}/horovod.lds\"",
        ),
        # distutils left Python's standard library with 3.12.
        (
            "horovod/torch/CMakeLists.txt",
            "from distutils.sysconfig import get_python_inc; print(get_python_inc())",
            "import sysconfig; print(sysconfig.get_paths()['include'])",
        ),
        (
            "horovod/runner/js_run.py",
            "from distutils.spawn import find_executable",
            "from shutil import which as find_executable",
        ),
    ]
    if gloo_only:
        # A CUDA build of torch beside any nvcc turns Horovod's CUDA build on, which then wants the
        # whole toolkit.
        test = "True if ((torch.version.cuda is not None) and (CUDA_HOME is not None)) else False"
        edits.append(("cmake/Modules/FindPytorch.cmake", test, "False"))
    for name, old, new in edits:
        path = source / name
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise BuildError(f"{name} of Horovod {VERSION} does not hold the line to patch: {old}")
        path.write_text(text.replace(old, new), encoding="utf-8")


# ---------------------------------------------------------------- the build


def _build_environment(
    python: Path, tools: Path, work: Path, jobs: int, gpu: str
) -> dict[str, str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(tools),
        "MAKEFLAGS": f"-j{jobs}",
        "HOROVOD_CMAKE": str(tools / "cmake" / "data" / "bin" / "cmake"),
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_CPU_OPERATIONS": "GLOO",
    }
    if gpu == "nccl":
        environment["HOROVOD_GPU_OPERATIONS"] = "NCCL"
        nccl = _nccl_of_torch(python, work)
        if nccl and "HOROVOD_NCCL_HOME" not in os.environ:
            environment["HOROVOD_NCCL_HOME"] = str(nccl)
    return environment


def _nccl_of_torch(python: Path, work: Path) -> Path | None:
    """A folder as CMake expects NCCL's, made of links into the package that torch itself uses."""
    purelib = Path(_ask(python, "import sysconfig; print(sysconfig.get_paths()['purelib'])"))
    package = purelib / "nvidia" / "nccl"
    library = package / "lib" / "libnccl.so.2"
    if not library.is_file():
        return None
    folder = work / "nccl"
    (folder / "lib").mkdir(parents=True)
    (folder / "include").symlink_to(package / "include")
    (folder / "lib" / "libnccl.so").symlink_to(library)  # the package has the versioned name only
    return folder


def _check_wheel(python: Path, wheel: Path, work: Path, gpu: str, log) -> None:
    """Import the wheel beside the environment's torch: one that cannot be loaded must not be
    cached.
    """
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(work / "check")  # noqa: S202 (our own wheel)
    test = "nccl_built" if gpu == "nccl" else "gloo_built"
    code = f"import horovod.torch as hvd; assert hvd.{test}(), '{test} is false'"
    env = {**os.environ, "PYTHONPATH": str(work / "check")}
    output: list[str] = []
    if _run([str(python), "-c", code], log, cwd=work, env=env, on_line=output.append):
        raise BuildError("the wheel does not work: " + " ".join(output[-1:]))


def _run(
    command: list[str],
    log,
    *,
    cwd: Path | None = None,
    env: dict[str, str],
    on_line: Callable[[str], None],
) -> int:
    """Run a program; its output goes to the log and, line by line, to ``on_line``. Returns its
    status.
    """
    log.write("$ " + " ".join(command) + "\n")
    try:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise BuildError(f"{command[0]}: {error.strerror}") from None
    try:
        for line in process.stdout:
            log.write(line)
            on_line(line.rstrip("\n"))
        return process.wait()
    except BaseException:
        process.terminate()  # interrupted: no compiler goes on alone
        process.wait()
        raise


def _progress(tell: Say) -> Callable[[str], None]:
    """CMake's percentages, one line every few seconds."""
    last = [time.monotonic(), -1]

    def on_line(line: str) -> None:
        match = re.match(r"\[\s*(\d+)%\]", line)
        if not match:
            return
        percent, now = int(match[1]), time.monotonic()
        if percent > last[1] and now - last[0] >= SECONDS_BETWEEN_LINES:
            last[:] = now, percent
            tell(f"compiling, {percent} %")

    return on_line


def first_error(text: str, work: Path) -> str:
    """The first line of a build's log that says why it failed, without the build folder's name."""
    lines = [line.strip() for line in text.replace(f"{work}/", "").splitlines()]
    # collect2 only says that the linker failed; ld itself says why.
    compiler, linker = r"(?<!collect2: )(fatal )?error: ", r"\bld(\.\w+)?: (?!warning)"
    for pattern in (compiler, linker, r"CMake Error", r"[A-Za-z]*Error: ", r"\*\*\* "):
        for number, line in enumerate(lines):
            if re.search(pattern, line) and "subprocess-exited" not in line:
                if pattern == "CMake Error":  # the message stands on the lines below
                    line = " ".join([line, *lines[number + 1 : number + 4]])
                return " ".join(line.split())[:400]
    return lines[-1] if lines else "the compiler said nothing"


# ---------------------------------------------------------------- the program


@contextlib.contextmanager
def _work_folder(parent: str | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="horovod-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Build the wheel, print its path. 1 and ``error: <reason>`` where that is impossible."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--python", default=sys.executable, help="the environment's python")
    parser.add_argument("--out", required=True, help="folder that receives the wheel")
    parser.add_argument("--lock", default=DEFAULT_LOCK, help="lock file with horovod and its tools")
    parser.add_argument("--gpu", choices=["none", "nccl"], default="none", help="none: Gloo only")
    parser.add_argument("--log", help="where the compiler's output goes (default: <out>/build.log)")
    arguments = parser.parse_args()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    log = Path(arguments.log or out / "build.log")
    try:
        with _work_folder(None) as work:
            wheel = build(
                arguments.python, out, work=work, log=log, lock=arguments.lock, gpu=arguments.gpu
            )
    except BuildError as error:
        print(f"error: {error}\n(everything that the compiler said: {log})", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
