"""Compile Horovod for the torch of a Python environment, and leave a wheel.

    <the environment's python> containers/build_horovod.py --lock horovod.txt --out <folder>

Horovod's last release (0.28.1, 2023) does not compile against today's torch as it stands. This
program takes exactly that release from the package registry (pip, by hash), patches the few lines
that stand in the way, and builds it with Gloo, or with NCCL too (``--gpu nccl``). Its build tools
(an older setuptools and CMake) come from the same lock file and never enter the environment.

Standard library only: it runs on a host and inside an image's recipe. The whole output goes to
<out>/build.log. Where it fails, standard output is the reason, on one line, and the status is 1.
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
from pathlib import Path

VERSION = "0.28.1"
GIB_PER_JOB = 1.5  # of memory, for one g++ on torch's headers
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
    """Why Horovod cannot be built here, on one line."""


def run(words: list[str], log: Path, folder: Path | None = None, **variables: str) -> None:
    """Run this Python with ``words``; the log keeps its output. Failure has the line that tells."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(words)}\n{done.stdout}")
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        pattern = r"\berror: |CMake Error|^ERROR|\b[A-Za-z]*Error\b|\*\*\* "
        telling = [line for line in lines if re.search(pattern, line)] + lines[-1:]
        raise Failure(telling[0][:400] if telling else f"{words[0]} said nothing")


def fetch(lock: Path, work: Path, log: Path) -> Path:
    """Install the build tools into work/tools, and unpack Horovod's source. Returns its folder."""
    entries = re.split(r"\n(?=[A-Za-z0-9])", "\n" + lock.read_text(encoding="utf-8"))
    own = [entry for entry in entries if entry.startswith(f"horovod=={VERSION} ")]
    others = [entry for entry in entries if "==" in entry and entry not in own]
    (work / "horovod.txt").write_text("\n".join(own) + "\n")
    (work / "tools.txt").write_text("\n".join(others) + "\n")
    options = ["--no-deps", "--require-hashes", "--disable-pip-version-check"]
    tools = ["--only-binary=:all:", "--target", str(work / "tools"), "-r", str(work / "tools.txt")]
    run(["-m", "pip", "install", *options, *tools], log)
    # pip asks the archive for its metadata, which takes the older setuptools.
    source = ["--no-binary=horovod", "--no-build-isolation", "--dest", str(work)]
    source += ["-r", str(work / "horovod.txt")]
    run(["-m", "pip", "download", *options, *source], log, PYTHONPATH=str(work / "tools"))
    with tarfile.open(work / f"horovod-{VERSION}.tar.gz") as archive:
        archive.extractall(work)  # noqa: S202  (its SHA-256 is the locked one)
    return work / f"horovod-{VERSION}"


def patch(source: Path, gpu: str) -> None:
    """Patch the unpacked source. Raises Failure where a text to replace is not there once."""
    # torch's all.h refuses older compilers by itself: `__cplusplus < 202002L` means C++20.
    torch = importlib.util.find_spec("torch").submodule_search_locations[0]
    header = Path(torch, "include/torch/csrc/api/include/torch/all.h").read_text()
    standard = max(["17", *re.findall(r"__cplusplus < 20(\d\d)\d\dL", header)])
    for name, old, new in [*PATCHES, *([GLOO_ONLY] if gpu == "none" else [])]:
        text = (source / name).read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise Failure(f"{name} of Horovod {VERSION} does not hold the line to patch: {old}")
        (source / name).write_text(text.replace(old, new.replace("{standard}", standard)))


def compile_wheel(source: Path, work: Path, log: Path, gpu: str) -> Path:
    """Build the wheel and load it beside torch. Returns its path."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    jobs = max(1, min(len(os.sched_getaffinity(0)), int(memory / GIB_PER_JOB)))
    tools = work / "tools"
    variables = {"HOROVOD_CMAKE": str(tools / "cmake" / "data" / "bin" / "cmake")}
    variables |= {f"HOROVOD_WITHOUT_{name}": "1" for name in ("TENSORFLOW", "MXNET", "MPI")}
    variables |= {"HOROVOD_WITH_PYTORCH": "1", "HOROVOD_WITH_GLOO": "1"}
    variables |= {"HOROVOD_CPU_OPERATIONS": "GLOO", "MAKEFLAGS": f"-j{jobs}"}
    if gpu == "nccl":
        variables |= {"HOROVOD_GPU_OPERATIONS": "NCCL"} | nccl_of_torch(work)
    words = ["setup.py", "bdist_wheel", "--dist-dir", str(work / "dist")]
    run(words, log, source, PYTHONPATH=str(tools), **variables)
    (wheel,) = (work / "dist").glob("*.whl")
    shutil.unpack_archive(wheel, work / "check", "zip")
    check = f"import horovod.torch as h; assert h.{'nccl' if gpu == 'nccl' else 'gloo'}_built()"
    run(["-c", check], log, work, PYTHONPATH=str(work / "check"))
    return wheel


def nccl_of_torch(work: Path) -> dict[str, str]:
    """NCCL as CMake expects it, of links into the package that torch itself uses."""
    package = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "nccl"
    library = package / "lib" / "libnccl.so.2"
    if "HOROVOD_NCCL_HOME" in os.environ or not library.is_file():
        return {}
    (work / "nccl" / "lib").mkdir(parents=True)
    (work / "nccl" / "include").symlink_to(package / "include")
    (work / "nccl" / "lib" / "libnccl.so").symlink_to(library)
    return {"HOROVOD_NCCL_HOME": str(work / "nccl")}


def main() -> int:
    """Build the wheel into --out."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--lock", required=True, type=Path, help="horovod and its build tools")
    parser.add_argument("--out", required=True, type=Path, help="folder that receives the wheel")
    parser.add_argument("--gpu", choices=["none", "nccl"], default="none", help="none: Gloo only")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    log = out / "build.log"
    log.unlink(missing_ok=True)
    try:
        if not any(map(shutil.which, os.environ.get("CXX", "").split()[:1] or ["c++", "g++"])):
            raise Failure("no C++ compiler was found; Debian, Ubuntu: sudo apt install g++ make")
        with tempfile.TemporaryDirectory(prefix="horovod-", dir=out) as folder:
            source = fetch(arguments.lock, Path(folder), log)
            patch(source, arguments.gpu)
            wheel = compile_wheel(source, Path(folder), log, arguments.gpu)
            os.replace(wheel, out / wheel.name)
    except Failure as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
