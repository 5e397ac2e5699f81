"""The host environment: set up once from a lock file, then entered by every `make` target.

    python3 scripts/environment.py ensure                    # set up if need be, print its folder
    python3 scripts/environment.py exec -- python -m pytest  # the same, then run a program in it

Environments lie in `$PARBENCH_CACHE/envs/`, outside the clone, and are named by what they are made
from (lock file, Python, build recipe), so that one is never changed once it is complete: another
lock file is another environment. Horovod, which no registry offers as a wheel for today's torch,
is compiled once and kept as a wheel in `$PARBENCH_CACHE/wheels/`; where that is impossible, the
reason is written into the environment and everything else goes on.

Standard library only: this runs on a bare Python. Progress goes to standard error.
"""

from __future__ import annotations

import sys

if sys.hexversion < 0x030B0000:  # said before anything that an older Python cannot import
    sys.exit(
        f"error: parbench needs Python 3.11 or newer, {sys.executable} is older; Debian and Ubuntu:"
        " sudo apt install python3.11 python3.11-venv, then: make PYTHON=python3.11 ..."
    )

import argparse
import ast
import configparser
import functools
import html
import importlib.util
import os
import platform
import re
import shutil
import ssl
import subprocess
import sysconfig
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from types import ModuleType

import cache
import unbundle
from errors import ParbenchError, run_main
from files import digest, read_json, sha256_file, write_atomically, write_json

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "containers" / "build_horovod.py"
LAYOUT = 1  # raised when this program makes environments that older ones cannot stand for

GIB_NEEDED = 8  # torch with its CUDA libraries is 5.4 GB unpacked, and pip holds the archives
SECONDS_BETWEEN_LINES = 10
# Settings of other environments that would bend what the lock file says; and modules that are never
# kept compiled would cost every cell ten seconds at its start.
FOREIGN = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONDONTWRITEBYTECODE",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_CONSTRAINT",
)


def say(text: str) -> None:
    """A line for people."""
    print(f"parbench: {text}", file=sys.stderr, flush=True)


def locks(stack: str) -> Path:
    """The folder of a stack's lock files."""
    folder = ROOT / "containers" / "locks" / stack
    if not (folder / "host.txt").is_file():
        raise ParbenchError(f"stack {stack!r}: there is no {folder / 'host.txt'}")
    return folder


def horovod_gpu() -> str:
    """`$PARBENCH_HOROVOD_GPU`: none (the default: Gloo only) or nccl."""
    value = os.environ.get("PARBENCH_HOROVOD_GPU") or "none"
    if value not in ("none", "nccl"):
        raise ParbenchError(
            f"PARBENCH_HOROVOD_GPU is {value!r}; set it to none or nccl, or unset it"
        )
    return value


def environment_folder(stack: str) -> Path:
    """Where the environment of ``stack`` is, or will be, for the Python that runs this."""
    folder = locks(stack)
    files = [file for name in ("host.txt", "horovod.txt") if (file := folder / name).is_file()]
    identity = {
        "layout": LAYOUT,
        "locks": {file.name: sha256_file(file) for file in files},
        "python": python_identity(),
        "recipe": recipe_digest(),
        "gpu": horovod_gpu(),
    }
    return cache.folder() / "envs" / f"{stack}-{digest(identity)[:12]}"


def python_identity() -> list[str]:
    """Which compiled packages this Python and machine take."""
    abi = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
    return [abi, sysconfig.get_platform()]


def recipe_digest() -> str:
    """What Horovod's build recipe does, by digest: a comment or docstring there changes nothing."""
    tree = ast.parse(RECIPE.read_bytes())
    for node in ast.walk(tree):
        owner = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        if owner and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
    return digest(ast.dump(tree))


# ---------------------------------------------------------------- ensure


def ensure(stack: str, *, retry_horovod: bool = False) -> Path:
    """Set up the environment of ``stack`` unless it is there, and return its folder.

    Two at once build once; what an interrupted one left is taken up again. Raises ParbenchError.
    """
    folder = environment_folder(stack)
    if not _is_complete(folder):  # said before gigabytes are read
        unbundle.packages(stack, locks(stack) / "host.txt", python_identity())
    unbundle.adopt()
    if _is_complete(folder) and not _horovod_may_change(folder, retry_horovod):
        return folder
    with cache.locked(folder.with_name(folder.name + ".lock"), "the same environment") as lock:
        if not _is_complete(folder):
            _set_up(folder, stack, lock)
        elif _horovod_may_change(folder, retry_horovod):
            say("Horovod could not be built before; trying again")
            _record_time(folder, "horovod_seconds", _add_horovod(folder, stack))
    return folder


def _python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def _is_complete(folder: Path) -> bool:
    # The interpreter is a link to the system's, which an upgrade may have taken away.
    return (folder / ".complete").is_file() and os.access(_python_of(folder), os.X_OK)


def _set_up(folder: Path, stack: str, lock: int) -> None:
    say(
        f"setting up the environment of the stack {stack} for Python {platform.python_version()}"
        f" in {folder} (once; some 5 GB)"
    )
    _require_disk(folder)
    if not ((folder / ".packages").is_file() and os.access(_python_of(folder), os.X_OK)):
        if folder.exists():
            say("an earlier set-up was interrupted; starting again, with what pip has downloaded")
            shutil.rmtree(folder)
        seconds = _install_packages(folder, stack, lock)
        _record_time(folder, "packages_seconds", seconds)
        write_atomically(folder / ".packages", "")
    _record_time(folder, "horovod_seconds", _add_horovod(folder, stack))
    write_atomically(folder / ".complete", "")
    times = read_json(folder / "setup.json")
    say(
        f"the environment is ready (packages {times['packages_seconds']:.0f} s,"
        f" Horovod {times['horovod_seconds']:.0f} s)"
    )


def _record_time(folder: Path, key: str, seconds: float) -> None:
    path = folder / "setup.json"
    known = read_json(path) if path.exists() else {"python": platform.python_version()}
    write_json(path, {**known, key: round(seconds, 1)})


def _require_disk(folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder.parent).free / 2**30
    except OSError as error:
        raise ParbenchError(
            f"{folder.parent}: {error.strerror}; point PARBENCH_CACHE at a folder that is yours"
        ) from None
    if free < GIB_NEEDED:
        raise ParbenchError(_disk_message(folder.parent, free))


def _disk_message(folder: Path, free: float) -> str:
    return (
        f"{folder}: {free:.1f} GiB are free, the environment needs {GIB_NEEDED};"
        " free some, or point PARBENCH_CACHE at a larger disk"
    )


# ---------------------------------------------------------------- packages


def _install_packages(folder: Path, stack: str, lock: int) -> float:
    """Create the environment and install its lock file. Returns the seconds that it took."""
    started = time.monotonic()
    log = folder.with_name(folder.name + ".pip.log")
    log.unlink(missing_ok=True)
    # Wheels of gigabytes are unpacked on the way, and /tmp is memory on some systems.
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    host = locks(stack) / "host.txt"
    try:
        _create(folder, host)
        packages = len(re.findall(r"^[A-Za-z0-9][^\s=]*==", host.read_text("utf-8"), re.MULTILINE))
        bundled = unbundle.packages(stack, host, python_identity())
        source = "bundle/wheels and nowhere else" if bundled else "the package registry"
        say(f"installing {packages} packages from {source}, each checked by SHA-256")
        environment = clean_environment()
        environment.setdefault("TMPDIR", str(temporary))
        command = [str(_python_of(folder)), "-m", "pip", "install", "--no-deps"]
        # Compiling every module would take a minute; Python compiles what is imported by itself.
        command += ["--no-compile", "--require-hashes", "--disable-pip-version-check", "--no-input"]
        command += ["--log", str(log), "-r", str(bundled.requirements if bundled else host)]
        if bundled:
            command += ["--no-index", "--find-links", str(bundled.wheels)]
        if run_pip(command, environment, lock):
            raise ParbenchError(pip_failure(log, folder, source))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    log.unlink(missing_ok=True)
    return time.monotonic() - started


def clean_environment() -> dict[str, str]:
    """This process's variables without those that would bend what a lock file says."""
    kept = {key: value for key, value in os.environ.items() if key not in FOREIGN}
    return {**kept, "PIP_USER": "0"}


def _create(folder: Path, lock_file: Path) -> None:
    """Create the virtual environment with a pip, also where Python comes without one (Debian)."""
    # Debian ships ensurepip in a package of its own, without which `venv` fails half-way.
    own_pip = importlib.util.find_spec("ensurepip") is not None
    command = [sys.executable, "-m", "venv", *([] if own_pip else ["--without-pip"]), str(folder)]
    done = subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise ParbenchError(f"{' '.join(command)} failed: {' '.join(last)}; {_venv_fix()}")
    if not own_pip:
        _bootstrap_pip(folder, lock_file)


def _venv_fix() -> str:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return f"on Debian and Ubuntu: sudo apt install {version}-venv"


def _bootstrap_pip(folder: Path, lock_file: Path) -> None:
    """Give the environment the pip of the lock file, fetched without a pip."""
    entry = re.search(r"^pip==(\S+) \\\n((?:\s+--hash=.*\n)+)", lock_file.read_text("utf-8"), re.M)
    if not entry:
        raise ParbenchError(f"{lock_file}: pins no pip, and this Python has none; {_venv_fix()}")
    name = f"pip-{entry[1]}-py3-none-any.whl"
    wheel = folder / name
    bundled = unbundle.folder() / "wheels" / name
    say(f"this Python has no pip; {'taking it from' if bundled.is_file() else 'fetching'} {name}")
    try:
        content = bundled.read_bytes() if bundled.is_file() else _fetch_from_index("pip", name)
    except (OSError, ValueError) as error:
        raise ParbenchError(
            f"this Python has no pip, and {name} cannot be fetched ({error}); {_venv_fix()}"
        ) from None
    wheel.write_bytes(content)
    if f"--hash=sha256:{sha256_file(wheel)}" not in entry[2]:
        wheel.unlink()
        raise ParbenchError(f"{name}: the package registry's file is not the one that is locked")
    command = [str(_python_of(folder)), f"{wheel}/pip", "install", "--no-index", "--no-deps"]
    done = subprocess.run(
        [*command, "--quiet", str(wheel)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    wheel.unlink()
    if done.returncode:
        raise ParbenchError(f"{name} cannot be installed: {done.stderr.strip()[-300:]}")


def _fetch_from_index(project: str, file: str) -> bytes:
    """A file of a project from the package index that pip is configured to use."""
    settings = pip_settings()
    context = ssl.create_default_context(cafile=settings.get("cert"))
    indexes = [settings.get("index-url") or "https://pypi.org/simple"]
    indexes += settings.get("extra-index-url", "").split()
    problem: Exception = ValueError(f"no package index offers {file}")
    for index in indexes:
        page = f"{index.rstrip('/')}/{project}/"
        try:
            text = _read_url(page, context).decode("utf-8", "replace")
            for link in re.findall(r"""href\s*=\s*["']([^"']+)["']""", text):
                url = urllib.parse.urljoin(page, html.unescape(link))
                if urllib.parse.unquote(urllib.parse.urlsplit(url).path).endswith(f"/{file}"):
                    return _read_url(url, context)
        except (OSError, ValueError) as error:
            problem = error
    raise problem


def _read_url(url: str, context: ssl.SSLContext) -> bytes:
    if url.startswith("file:") and url.endswith("/"):
        url += "index.html"
    # The scheme is that of the user's own pip settings; `file:` is a mirror on disk.
    with urllib.request.urlopen(url, timeout=60, context=context) as answer:  # noqa: S310
        return answer.read()


def pip_settings() -> dict[str, str]:
    """pip's index settings, from its variables and its configuration files."""
    home = Path.home()
    config_home = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    paths = [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", config_home / "pip" / "pip.conf"]
    parser = configparser.RawConfigParser()
    parser.read([*paths, os.environ.get("PIP_CONFIG_FILE") or os.devnull], encoding="utf-8")
    settings = {
        key: value
        for section in ("global", "install")
        if parser.has_section(section)
        for key, value in parser.items(section)
    }
    for key in ("index-url", "extra-index-url", "cert"):
        value = os.environ.get("PIP_" + key.upper().replace("-", "_"))
        if value:
            settings[key] = value
    return settings


def run_pip(command: list[str], environment: dict[str, str], lock: int) -> int:
    """Run pip: with its own progress on a terminal, otherwise with a line every few seconds."""
    # pip holds the lock too: were this process killed, the next one would wait for pip's end.
    if sys.stderr.isatty():
        return subprocess.run(
            command, env=environment, stdout=sys.stderr, pass_fds=(lock,), check=False
        ).returncode
    started = time.monotonic()
    process = subprocess.Popen(
        [*command, "--progress-bar", "off"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=(lock,),
    )
    state = {"collected": 0, "now": "starting"}
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(SECONDS_BETWEEN_LINES):
            seconds = time.monotonic() - started
            say(f"  {state['collected']} packages fetched, {state['now']} [{seconds:.0f} s]")

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        for line in process.stdout:
            words = line.split()
            if line.startswith(("Collecting", "Processing")):
                state["collected"] += 1
                state["now"] = Path(words[1].split("==")[0]).name
            elif line.startswith("Installing collected packages"):
                state["now"] = "installing"
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        ended.set()
        reporter.join()


def pip_failure(log: Path, folder: Path, source: str = "the package registry") -> str:
    """What pip's log says, in one sentence with what mends it."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    tail = f" (everything that pip said: {log})"
    if "DO NOT MATCH THE HASHES" in text or "HashMismatch" in text:
        found = re.search(r"HASHES FROM.*?\n\S*\s*([A-Za-z0-9][^\n]*?)( from |:\n|:$)", text, re.S)
        which = " ".join(found[1].split()) if found else "a package"
        return (
            f"{which}: the package registry's file is not the locked one (its SHA-256 differs);"
            f" nothing of it was installed{tail}"
        )
    if "No space left on device" in text or "Errno 28" in text or "Disk quota exceeded" in text:
        return _disk_message(folder.parent, shutil.disk_usage(folder.parent).free / 2**30)
    if missing := re.search(r"No matching distribution found for (\S+)", text):
        offline = _network_problem(text)
        return f"{source} {offline or f'does not offer {missing[1]}'}{tail}"
    if offline := _network_problem(text):
        return f"the package registry {offline}{tail}"
    errors = re.findall(r"(?:ERROR:|error:) (.+)", text)
    return f"pip: {errors[-1] if errors else 'failed without a message'}{tail}"


def _network_problem(text: str) -> str | None:
    signs = r"NewConnectionError|NameResolutionError|ConnectTimeout|ProxyError|SSLError|ReadTimeout"
    signs += r"|Connection refused|Network is unreachable|name resolution|Max retries exceeded"
    if not re.search(signs, text):
        return None
    return "cannot be reached; check the network, or name a mirror in PIP_INDEX_URL"


# ---------------------------------------------------------------- Horovod


def _horovod_may_change(folder: Path, retry: bool) -> bool:
    """Whether Horovod is missing for a reason that may have gone: another compiler, a network."""
    state = read_json(folder / "horovod.json")
    if state["available"] or "toolchain" not in state:
        return False
    return retry or state["passing"] or state["toolchain"] != _toolchain()


def _toolchain() -> str:
    """The compiler, make and Python's headers, by digest and without starting any of them."""
    builder = _builder()
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    files = [shutil.which(name) for name in [*builder.compilers(), "make"]] + [str(header)]
    facts = []
    for file in files:
        real = os.path.realpath(file) if file else ""
        status = os.stat(real) if real and os.path.exists(real) else None
        facts.append([real, status and status.st_size, status and status.st_mtime])
    variables = [os.environ.get(name) for name in ("CC", "CXX", "CXXFLAGS", "LDFLAGS")]
    return digest([facts, variables])


@functools.cache
def _builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_horovod", RECIPE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _add_horovod(folder: Path, stack: str) -> float:
    """Install Horovod's wheel, built if need be, or record why there is none. Returns seconds."""
    started = time.monotonic()
    lock_file = locks(stack) / "horovod.txt"
    if not lock_file.is_file():
        state = {"available": False, "reason": f"the stack {stack} has no Horovod"}
    else:
        state = _horovod_state(folder, lock_file)
    write_json(folder / "horovod.json", state)
    if not state["available"]:
        say(f"Horovod is not available: {state['reason']}")
        if "log" in state:
            say(f"  everything else goes on without it; the whole build log: {state['log']}")
    return time.monotonic() - started


def _horovod_state(folder: Path, lock_file: Path) -> dict:
    builder = _builder()
    place = _wheel_place(folder, lock_file)
    log = place / "build.log"
    with cache.locked(place.with_name(place.name + ".lock"), "the same Horovod"):
        place.mkdir(parents=True, exist_ok=True)
        wheel = _cached_wheel(place)
        if wheel is None and unbundle.contents() is not None:
            reason = "the machine that wrote bundle/ had none, and compiling it needs a network"
            return {
                "available": False,
                "reason": reason,
                "toolchain": _toolchain(),
                "passing": False,
            }
        try:
            if wheel is None:
                say("compiling Horovod for this torch (once; 2 to 5 minutes on two cores)")
                wheel = _build_wheel(folder, place, log, lock_file)
            _install_wheel(folder, wheel)
        except builder.BuildError as error:
            return {
                "available": False,
                "reason": str(error),
                "log": str(log),
                "toolchain": _toolchain(),
                # Nothing that the compiler said: the next start may do better.
                "passing": isinstance(error, builder.FetchError),
            }
    return {"available": True, "version": builder.VERSION, "gpu": horovod_gpu()}


def horovod_wheel(stack: str) -> Path | None:
    """The folder of the compiled Horovod of the stack's environment, if it is whole."""
    folder, lock_file = environment_folder(stack), locks(stack) / "horovod.txt"
    place = _wheel_place(folder, lock_file) if lock_file.is_file() else None
    return place if place and _cached_wheel(place) else None


def _wheel_place(folder: Path, lock_file: Path) -> Path:
    return cache.folder() / "wheels" / f"horovod-{_wheel_key(folder, lock_file)}"


def _wheel_key(folder: Path, lock_file: Path) -> str:
    """What a compiled Horovod depends on, readable, and the digest of all of it."""
    builder = _builder()
    code = "import importlib.metadata as m; print(m.version('torch'))"
    done = subprocess.run(
        [str(_python_of(folder)), "-c", code], capture_output=True, text=True, check=False
    )
    torch = done.stdout.strip() or "none"
    gpu = horovod_gpu()
    facts = [builder.VERSION, torch, *python_identity(), sha256_file(lock_file), recipe_digest()]
    return f"{builder.VERSION}-torch{torch}-{gpu}-{digest([*facts, gpu])[:12]}"


def _cached_wheel(place: Path) -> Path | None:
    try:
        built = read_json(place / "built.json")
        wheel = place / built["wheel"]
        if sha256_file(wheel) == built["sha256"]:
            return wheel
    except (ParbenchError, OSError, KeyError, TypeError):
        pass
    return None


def _build_wheel(folder: Path, place: Path, log: Path, lock_file: Path) -> Path:
    builder = _builder()
    for old in place.glob("work-*"):  # of a build that was killed
        shutil.rmtree(old, ignore_errors=True)
    work = place / f"work-{os.getpid()}"
    work.mkdir()
    started = time.monotonic()
    saved = {key: os.environ.pop(key) for key in FOREIGN if key in os.environ}
    try:
        wheel = builder.build(
            _python_of(folder),
            place,
            work=work,
            log=log,
            lock=lock_file,
            gpu=horovod_gpu(),
            say=say,
        )
    finally:
        os.environ.update(saved)
        shutil.rmtree(work, ignore_errors=True)
    seconds = round(time.monotonic() - started, 1)
    built = {"wheel": wheel.name, "sha256": sha256_file(wheel), "seconds": seconds}
    write_json(place / "built.json", built)
    return wheel


def _install_wheel(folder: Path, wheel: Path) -> None:
    command = [str(_python_of(folder)), "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-index", "--disable-pip-version-check", str(wheel)]
    done = subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = f"{wheel.name} cannot be installed: {done.stderr.strip()[-300:]}"
        raise _builder().BuildError(reason)


# ---------------------------------------------------------------- exec


def execute(folder: Path, command: list[str]) -> None:
    """Become ``command``, run in the environment. Never returns."""
    program = shutil.which(command[0], path=str(folder / "bin")) or shutil.which(command[0])
    if program is None:
        raise ParbenchError(f"{command[0]}: no such program, neither in {folder} nor on PATH")
    environment = clean_environment()
    environment["VIRTUAL_ENV"] = str(folder)
    environment["PATH"] = os.pathsep.join([str(folder / "bin"), os.environ.get("PATH", "")])
    os.execve(program, command, environment)  # noqa: S606


def release_stale_lock(folder: Path) -> None:
    """Take away the workflow's lock on ``folder`` when the Snakemake that held it was killed.

    A Snakemake that still works in the folder (whose `make` alone was killed, say) is waited for.
    ParbenchError when the lock was taken on another machine, where nobody can be seen from here.
    """
    state = folder / ".snakemake"
    held = list((state / "locks").glob("*")) if (state / "locks").is_dir() else []
    if held:
        owner = held[0].stat().st_uid
        if process := _live_snakemake(folder, owner):
            say(
                f"Snakemake already works in this folder (process {process}); waiting for its end"
                f" (to stop it: kill {process})"
            )
            while _live_snakemake(folder, owner):
                time.sleep(0.5)
            return release_stale_lock(folder)
        holder = state / "parbench.host"
        host = holder.read_text(encoding="utf-8") if holder.exists() else platform.node()
        if host != platform.node():
            raise ParbenchError(
                f"this folder is locked by a Snakemake on {host}; when that runs no more: rm -r"
                f" '{state / 'locks'}'"
            )
        say("an earlier run was killed; releasing its lock on this folder")
        shutil.rmtree(state / "locks")
    state.mkdir(exist_ok=True)
    # On a shared disk the holder of a lock may run where its processes cannot be seen.
    write_atomically(state / "parbench.host", platform.node())


def _live_snakemake(folder: Path, owner: int) -> int | None:
    """The process id of a Snakemake of user ``owner`` that works in ``folder``."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            is_snakemake = any(Path(word).name == "snakemake" for word in words[:4])
            if not is_snakemake or process.stat().st_uid != owner:
                continue
            if os.path.realpath(process / "cwd") == os.path.realpath(folder):
                return int(process.name)
        except OSError:  # ended meanwhile
            continue
    return None


# ---------------------------------------------------------------- the program


def main() -> int:
    """Parse the arguments and act."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("ensure", "set up, print the folder"), ("exec", "set up, run a program")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--stack", default="current", help="a folder of containers/locks/")
        command.add_argument(
            "--retry-horovod", action="store_true", help="build Horovod again where it failed"
        )
        if name == "exec":
            command.add_argument(
                "--unlock", action="store_true", help="release the lock of a killed Snakemake"
            )
            command.add_argument("program", nargs="+", help="-- program and its arguments")
    arguments = parser.parse_args()
    try:
        folder = ensure(arguments.stack, retry_horovod=arguments.retry_horovod)
        if arguments.command == "ensure":
            print(folder)
            return 0
        if arguments.unlock:
            release_stale_lock(Path.cwd())
        execute(folder, arguments.program)
    except KeyboardInterrupt:
        say("interrupted; run the same command again to go on")
        raise
    except OSError as error:
        if error.errno not in (28, 122):  # no space, quota
            raise
        free = shutil.disk_usage(cache.folder().parent).free / 2**30
        raise ParbenchError(_disk_message(cache.folder(), free)) from None
    return 0


if __name__ == "__main__":
    run_main(main)
