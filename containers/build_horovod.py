"""Compile Horovod for the torch of a Python environment, and leave a wheel.

    <the environment's python> containers/build_horovod.py --lock horovod.txt --out <folder>

Horovod's last release (0.28.1, 2023) does not compile against today's torch as it stands. This
program takes exactly that release from the package registry (pip, by hash), patches the few lines
that stand in the way, and builds it with Gloo, or with NCCL too (``--gpu nccl``). Its build tools
(an older setuptools and CMake) come from the same lock file and never enter the environment.

Standard library only: it runs on a host and inside an image's recipe. Progress goes to standard
error, the whole output to <out>/build.log. Where it fails, standard output is the reason, on one
line; the status is then 3 where something could not be fetched, else 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from pathlib import Path

VERSION = "0.28.1"
GIB_PER_JOB = 1.5  # of memory, for one g++ on torch's headers
SECONDS_BETWEEN_LINES = 10
STANDARD = "set(CMAKE_CXX_STANDARD {})"
# File, what stands there, and what takes its place. {standard} is what torch's headers ask for.
PATCHES = [
    ("CMakeLists.txt", STANDARD.format(14), STANDARD.format(17)),
    ("horovod/torch/CMakeLists.txt", STANDARD.format(14), STANDARD.format("{standard}")),
    # Debug information: a third of the compiler's time, and nobody reads it.
    ("setup.py", "'RelWithDebInfo'", "'Release'"),
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
# A CUDA build of torch beside any nvcc turns Horovod's CUDA build on, which wants a whole toolkit.
GLOO_ONLY = (
    "cmake/Modules/FindPytorch.cmake",
    "True if ((torch.version.cuda is not None) and (CUDA_HOME is not None)) else False",
    "False",
)


class Failure(Exception):
    """Why Horovod cannot be built here, on one line, and the program's status."""

    def __init__(self, reason: str, status: int = 1):
        super().__init__(reason)
        self.status = status


def require_compiler() -> None:
    """Raise Failure, with the package that mends it, for what compiling needs."""
    compilers = [os.environ.get("CXX", "").split()[:1] or ["c++", "g++", "clang++"]][0]
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for there, what, package in (
        (any(map(shutil.which, compilers)), "no C++ compiler was found", "g++ make"),
        (shutil.which("make"), "make was not found", "make"),
        (header.is_file(), f"Python.h is not in {header.parent}", f"{version}-dev"),
    ):
        if not there:
            raise Failure(f"{what} (Debian and Ubuntu: sudo apt install {package})")


def torch_cxx_standard() -> int:
    """The C++ standard that torch's headers ask for: 17, or 20 from torch 2.15 on."""
    torch = importlib.util.find_spec("torch")
    if torch is None:
        raise Failure(f"torch is not installed in the environment of {sys.executable}")
    header = "include/torch/csrc/api/include/torch/all.h"
    text = Path(torch.submodule_search_locations[0], header).read_text()
    # all.h refuses older compilers by itself: `__cplusplus < 202002L` means C++20.
    return max([17, *map(int, re.findall(r"__cplusplus < 20(\d\d)\d\dL", text))])


class Build:
    """One build in a folder of its own, ``work``, with its log and lines for people."""

    def __init__(self, work: Path, log: Path):
        self.work, self.log, self.tools = work, log, work / "tools"
        self.started = self.said = time.monotonic()

    def tell(self, text: str) -> None:
        """A line for people."""
        seconds = time.monotonic() - self.started
        print(f"parbench: Horovod {VERSION}: {text} [{seconds:.0f} s]", file=sys.stderr, flush=True)

    def run(self, words: list[str], folder: Path | None = None, **variables: str) -> list[str]:
        """Run Python with ``words``. Returns the lines it printed, which the log keeps.

        Raises CalledProcessError with them as its output.
        """
        command = [sys.executable, *words]
        environment = {**os.environ, "PYTHONPATH": str(self.tools), **variables}
        lines = []
        with open(self.log, "a", encoding="utf-8") as log, subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        ) as process:  # fmt: skip
            log.write(f"$ {' '.join(command)}\n")
            for line in process.stdout:
                log.write(line)
                lines.append(line.rstrip())
                percent = re.match(r"\[\s*(\d+)%\]", line)
                if percent and time.monotonic() - self.said >= SECONDS_BETWEEN_LINES:
                    self.said = time.monotonic()
                    self.tell(f"compiling, {percent[1]} %")
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, "\n".join(lines))
        return lines

    def pip(self, *words: str) -> None:
        """Fetch something, by hash."""
        options = ["--no-deps", "--require-hashes", "--disable-pip-version-check"]
        try:
            self.run(["-m", "pip", *words, *options])
        except subprocess.CalledProcessError as error:
            lines = error.output.splitlines() or ["no message"]
            told = next((line for line in lines if line.startswith("ERROR")), lines[-1])
            raise Failure(f"pip: {told}", status=3) from None

    def fetch(self, lock: Path) -> Path:
        """Install the build tools aside, and unpack Horovod's source. Returns its folder."""
        self.tell("fetching the build tools and the source archive")
        entries = re.split(r"\n(?=[A-Za-z0-9])", "\n" + lock.read_text(encoding="utf-8"))
        own = [entry for entry in entries if entry.startswith(f"horovod=={VERSION} ")]
        others = [entry for entry in entries if "==" in entry and entry not in own]
        (self.work / "horovod.txt").write_text("\n".join(own) + "\n")
        (self.work / "tools.txt").write_text("\n".join(others) + "\n")
        tools = ("--target", str(self.tools), "-r", str(self.work / "tools.txt"))
        self.pip("install", "--only-binary=:all:", *tools)
        # pip asks the archive for its metadata, which takes the older setuptools.
        words = ("--no-binary=horovod", "--no-build-isolation", "--dest", str(self.work))
        self.pip("download", *words, "-r", str(self.work / "horovod.txt"))
        with tarfile.open(self.work / f"horovod-{VERSION}.tar.gz") as archive:
            # Python 3.11.2 knows no filter yet; the archive's SHA-256 is the locked one.
            known = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(self.work, **known)  # noqa: S202
        return self.work / f"horovod-{VERSION}"

    def compile(self, source: Path, gpu: str) -> Path:
        """Build the wheel. Returns its path."""
        standard = torch_cxx_standard()
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        jobs = max(1, min(len(os.sched_getaffinity(0)), int(memory / GIB_PER_JOB)))
        self.tell(f"compiling, C++{standard}, {jobs} job{'s' if jobs > 1 else ''}")
        variables = {"HOROVOD_CMAKE": str(self.tools / "cmake" / "data" / "bin" / "cmake")}
        variables |= {f"HOROVOD_WITHOUT_{name}": "1" for name in ("TENSORFLOW", "MXNET", "MPI")}
        variables |= {"HOROVOD_WITH_PYTORCH": "1", "HOROVOD_WITH_GLOO": "1"}
        variables |= {"HOROVOD_CPU_OPERATIONS": "GLOO", "MAKEFLAGS": f"-j{jobs}"}
        if gpu == "nccl":
            variables |= {"HOROVOD_GPU_OPERATIONS": "NCCL"} | self.nccl_of_torch()
        try:
            dist = str(self.work / "dist")
            self.run(["setup.py", "bdist_wheel", "--dist-dir", dist], source, **variables)
        except subprocess.CalledProcessError as error:
            raise Failure(first_error(error.output.replace(f"{self.work}/", ""))) from None
        (wheel,) = (self.work / "dist").glob("*.whl")
        self.check(wheel, "nccl_built" if gpu == "nccl" else "gloo_built")
        return wheel

    def check(self, wheel: Path, test: str) -> None:
        """Raise Failure for a wheel that cannot be loaded beside torch: it must not be kept."""
        shutil.unpack_archive(wheel, self.work / "check", "zip")
        code = f"import horovod.torch as hvd; assert hvd.{test}(), '{test} is false'"
        try:
            self.run(["-c", code], self.work, PYTHONPATH=str(self.work / "check"))
        except subprocess.CalledProcessError as error:
            told = error.output.splitlines()[-1:]
            raise Failure(f"the wheel does not work: {' '.join(told)}") from None

    def nccl_of_torch(self) -> dict[str, str]:
        """NCCL as CMake expects it, of links into the package that torch itself uses."""
        package = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "nccl"
        library = package / "lib" / "libnccl.so.2"
        if "HOROVOD_NCCL_HOME" in os.environ or not library.is_file():
            return {}
        (self.work / "nccl" / "lib").mkdir(parents=True)
        (self.work / "nccl" / "include").symlink_to(package / "include")
        (self.work / "nccl" / "lib" / "libnccl.so").symlink_to(library)
        return {"HOROVOD_NCCL_HOME": str(self.work / "nccl")}


def patch(source: Path, standard: int, gpu: str) -> None:
    """Patch the unpacked source. Raises Failure where a text to replace is not there once."""
    for name, old, new in [*PATCHES, *([GLOO_ONLY] if gpu == "none" else [])]:
        text = (source / name).read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise Failure(f"{name} of Horovod {VERSION} does not hold the line to patch: {old}")
        (source / name).write_text(text.replace(old, new.replace("{standard}", str(standard))))


def first_error(log: str) -> str:
    """The first line of a build's output that says why it failed."""
    lines = [line.strip() for line in log.splitlines()] or ["the compiler said nothing"]
    # collect2 only says that the linker failed; ld itself says why.
    compiler, linker = r"(?<!collect2: )(fatal )?error: ", r"\bld(\.\w+)?: (?!warning)"
    for pattern in (compiler, linker, r"CMake Error", r"[A-Za-z]*Error: ", r"\*\*\* "):
        for number, line in enumerate(lines):
            if re.search(pattern, line):  # CMake's message stands on the lines below
                more = lines[number + 1 : number + 4] if pattern == "CMake Error" else []
                return " ".join(" ".join([line, *more]).split())[:400]
    return lines[-1]


def main() -> int:
    """Build the wheel into --out."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--lock", required=True, type=Path, help="horovod and its build tools")
    parser.add_argument("--out", required=True, type=Path, help="folder that receives the wheel")
    parser.add_argument("--gpu", choices=["none", "nccl"], default="none", help="none: Gloo only")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    log = arguments.out / "build.log"
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="horovod-", dir=arguments.out) as work:
        build = Build(Path(work).resolve(), log)
        try:
            require_compiler()
            source = build.fetch(arguments.lock)
            patch(source, torch_cxx_standard(), arguments.gpu)
            wheel = build.compile(source, arguments.gpu)
        except Failure as error:
            print(error)
            return error.status
        os.replace(wheel, arguments.out / wheel.name)
    build.tell("wheel ready")
    return 0


if __name__ == "__main__":
    sys.exit(main())
