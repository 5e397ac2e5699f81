"""Find out how Apptainer runs images on this machine; compose commands that run in an image.

Standard library only. Images are isolated from the host: the environment is cleared, the home
folder and all others except those that a command binds are hidden, and each run has its own /tmp.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from parbench import distribution
from parbench import variables as own_variables
from parbench.errors import ParbenchError, sentence

PYTHON = "/opt/parbench/bin/python"  # in every image, see containers/base.def
SECONDS = 120  # after which a command counts as failed
# debootstrap is in sbin, which is not on ordinary users' PATH.
BUILD_PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
# Communication libraries look up the machine's own name.
NAMES = tuple(path for path in (Path("/etc/hosts"),) if path.exists())
# Tried in turn. A root user without full capabilities needs a user namespace.
WAYS: tuple[tuple[str, ...], ...] = (("--userns",), ())


@dataclass(frozen=True)
class Apptainer:
    """How this machine runs images.

    ``flags``: for `apptainer exec`. ``problem``: why images cannot run, with the fix, or None.
    """

    program: str | None
    version: str | None = None
    flags: tuple[str, ...] = ()
    problem: str | None = None


@functools.cache
def probe() -> Apptainer:
    """Find Apptainer and try each way of running a tiny image until one works."""
    path = shutil.which("apptainer")
    if path is None:
        remedy = f"{distribution.system('apptainer')} (docs/images.md has other ways)"
        return Apptainer(None, problem=f"Apptainer is not installed; {remedy}")
    version = _ask([path, "--version"]).stdout.strip().removeprefix("apptainer version ")
    problems = []
    try:
        with tempfile.TemporaryDirectory(prefix="parbench-probe-") as folder:
            _tiny(Path(folder))
            for flags in WAYS:
                done = _ask([path, "exec", *flags, "--contain", folder, "/bin/true"])
                if done.returncode == 0:
                    return Apptainer(path, version, flags)
                problems.append(last_error(done.stderr))
    except OSError as error:  # for example a full disk, which does not prevent cells on the host
        problems.append(sentence(error))
    reasons = "; ".join(dict.fromkeys(problems))
    problem = f"Apptainer {version} cannot run images here: {reasons}. docs/images.md: Trouble"
    return Apptainer(path, version, problem=problem)


def _tiny(folder: Path) -> None:
    """Fill ``folder`` with a tiny image: this machine's /bin/true and its libraries."""
    true = os.path.realpath(shutil.which("true") or "/bin/true")
    for name in ("bin", "dev", "etc", "proc", "sys", "tmp", "var/tmp"):
        (folder / name).mkdir(parents=True)
    for source in re.findall(r"/\S+", _ask(["ldd", true]).stdout):
        target = folder / source.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    shutil.copy(true, folder / "bin" / "true")


def _ask(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command; one that does not start or does not end counts as failed."""
    options = {"env": clean_environment(), "stdin": subprocess.DEVNULL, "timeout": SECONDS}
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def last_error(text: str) -> str:
    """Return Apptainer's last error message, without colors and prefix."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    error_lines = [line for line in lines if re.match(r"(FATAL|ERROR)\b", line)] or lines[-1:]
    return re.sub(r"^(FATAL|ERROR)\s*:\s*", "", error_lines[-1]) if error_lines else "no message"


def require(why: str) -> None:
    """Raise ParbenchError, beginning with ``why`` an image is needed, if images cannot run."""
    if (problem := probe().problem) is not None:
        raise ParbenchError(f"{why}, but {problem}")


def cannot_build(*, debootstrap: bool = True) -> str | None:
    """Return why this user cannot build images, with the fix; None if they can.

    ``debootstrap``: whether the base image needs it. Without a range of ids in /etc/subuid and
    /etc/subgid ordinary users cannot set owners of files; root without full capabilities needs one.
    """
    if debootstrap and shutil.which("debootstrap", path=BUILD_PATH) is None:
        remedy = distribution.system("apptainer", "debootstrap")
        return f"this user cannot build images: no debootstrap; {remedy}"
    user = os.environ.get("USER", str(os.getuid())) if os.getuid() else "root"
    for path in (Path("/etc/subuid"), Path("/etc/subgid")):
        text = path.read_text("utf-8", "replace") if path.exists() else ""
        owners = re.findall(r"^([^:\s]+):\d+:\d+\s*$", text, re.MULTILINE)
        if not {user, str(os.getuid())} & set(owners):
            problem = f"no range of ids for {user} in {path}"
            return f"this user cannot build images: {problem}; {distribution.give_ids(user)}"
    return None


def clean_environment() -> dict[str, str]:
    """Return this process's variables without those that change what Apptainer does.

    A user's APPTAINER_BIND, for example, would make further folders visible. Folders for temporary
    files, cache and keys are kept.
    """
    kept_names = ("APPTAINER_TMPDIR", "APPTAINER_CACHEDIR", "APPTAINER_CONFIGDIR")
    return {
        key: value
        for key, value in own_variables.clean().items()
        if key in kept_names or not key.startswith(("APPTAINER", "SINGULARITY"))
    }


def enter(
    image: Path,
    arguments: Sequence[str],
    *,
    binds: Sequence[Path],
    variables: Mapping[str, str],
    gpu: bool = False,
    temporary: Path | None = None,
    folder: Path | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs ``arguments`` inside ``image``, and its whole environment.

    ``binds``: the only host folders visible inside, under their own paths; ``variables``: the only
    variables; ``temporary``: becomes /tmp; ``folder``: the working folder.
    """
    installed = probe()
    assert installed.program is not None
    command = [installed.program, "--quiet", "exec", *installed.flags]
    command += ["--contain", "--cleanenv", "--no-home", "--no-mount", "bind-paths,hostfs,cwd"]
    if gpu:
        command += ["--nv"]
    if temporary is not None:
        command += ["--workdir", str(temporary)]
        # Made before the ranks start, which would all try to at once, and one would fail.
        for root, subfolder in (("/tmp", "tmp"), ("/var/tmp", "var_tmp")):  # noqa: S108
            for bind in (path for path in binds if path.is_relative_to(root)):
                (temporary / subfolder / bind.relative_to(root)).mkdir(parents=True, exist_ok=True)
    for bind in dict.fromkeys([*binds, *NAMES]):
        command += ["--mount", mount(bind)]
    if folder is not None:
        command += ["--pwd", str(folder)]
    inside_variables = {f"APPTAINERENV_{name}": value for name, value in variables.items()}
    return [*command, str(image), *arguments], clean_environment() | inside_variables


def mount(path: Path, inside: str | None = None) -> str:
    """Return the `--mount` argument for a folder, mounted at ``inside``; quoted as in CSV."""
    fields = ("type=bind", f"source={path}", f"destination={inside or path}")
    return ",".join('"' + field.replace('"', '""') + '"' for field in fields)
