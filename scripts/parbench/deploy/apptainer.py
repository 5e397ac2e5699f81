"""Apptainer: where it is, whether and how it runs an image here, and the command that enters one.

Standard library only. Nothing of the host enters an image but what a command names: the
environment is cleared, no home, no host folders, /tmp is the run's own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from parbench import cache
from parbench.errors import ParbenchError
from parbench.files import read_json, write_json

PYTHON = "/opt/parbench/bin/python"  # of every image, see containers/base.def
NEEDED = (1, 2)  # the first with build arguments and SOURCE_DATE_EPOCH
PREFIX = "/opt/parbench/apptainer"  # where containers/system.sh puts one that Debian lacks
INSTALL = "sudo make system installs it (docs/images.md has the other ways)"
SECONDS = 120
SUBIDS = 65536  # of a user: Apptainer wants as many to build an image
# A process must find its own machine's name, by which libraries that join processes go.
NAMES = tuple(path for path in (Path("/etc/hosts"),) if path.exists())

# Tried in turn. As root without all of root's rights only a user namespace works.
WAYS: tuple[tuple[str, ...], ...] = ((), ("--userns",))

# What the kernel or the machine's owner forbids, in Apptainer's words, and what mends it.
MENDS = (
    (
        r"Requesting capability set",
        "this root lacks rights that Apptainer asks for; run as an ordinary user, or allow user "
        "namespaces: sysctl -w user.max_user_namespaces=15000",
    ),
    (
        r"user namespace|unshare|newuidmap|CLONE_NEWUSER|Operation not permitted",
        "user namespaces are not allowed here; root can allow them: sysctl -w "
        "user.max_user_namespaces=15000 kernel.unprivileged_userns_clone=1 (Ubuntu 24.04: "
        "kernel.apparmor_restrict_unprivileged_userns=0)",
    ),
    (
        r"fuse|squashfuse",
        "/dev/fuse may not be opened or squashfuse is missing: sudo apt install squashfuse fuse3; "
        "sudo chmod 666 /dev/fuse",
    ),
)


@dataclass(frozen=True)
class Apptainer:
    """How this machine runs an image.

    ``flags`` come after `apptainer exec`. ``unpacked``: an image must be a folder, since nothing
    mounts a file here. ``trouble`` is None, or why no image runs here, with what mends it, which
    ``mend`` says alone.
    """

    program: str | None
    version: str | None = None
    flags: tuple[str, ...] = ()
    unpacked: bool = False
    trouble: str | None = None
    mend: str = ""


@functools.cache
def probe() -> Apptainer:
    """Run a tiny image in each way until one works. What was found is kept in the cache, for this
    user, machine and version: a probe costs a second.
    """
    path, version, lack = _find()
    if path is None:
        return Apptainer(None, trouble=f"{lack}; {INSTALL}", mend=INSTALL)
    kept = cache.folder() / "apptainer" / "probe.json"
    may_fuse = os.access("/dev/fuse", os.R_OK | os.W_OK)
    question = [path, version, os.getuid(), os.uname().nodename, os.uname().release, may_fuse]
    with contextlib.suppress(ParbenchError, KeyError, TypeError):
        known = read_json(kept)
        if known["question"] == question:
            return Apptainer(**{**known["answer"], "flags": tuple(known["answer"]["flags"])})
    found = _try_ways(path, version)
    if found.trouble is None:  # what does not work is asked again each time: somebody may mend it
        with contextlib.suppress(OSError):  # a cache that may only be read, or a full one
            write_json(kept, {"question": question, "answer": asdict(found)})
    return found


def _find() -> tuple[str | None, str, str]:
    """Path and version of an Apptainer that is new enough, else None and why there is none."""
    prefix = os.environ.get("PARBENCH_APPTAINER_PREFIX") or PREFIX
    named = os.environ.get("PARBENCH_APPTAINER")
    on_path = shutil.which("apptainer")
    # Whoever names one means no other.
    for place in [named] if named else [on_path, f"{prefix}/usr/bin/apptainer"]:
        if place and os.access(place, os.X_OK) and (said := _ask([place, "--version"])):
            version = re.search(r"\d+(?:\.\d+)+", said.stdout if not said.returncode else "")
            if version and tuple(map(int, version[0].split("."))) >= NEEDED:
                return place, version[0], ""
    wanted = ".".join(map(str, NEEDED))
    if named:
        return None, "", f"PARBENCH_APPTAINER is {named!r}, which is no Apptainer {wanted} or newer"
    old = f"{on_path} is no Apptainer {wanted} or newer"
    return None, "", old if on_path else "Apptainer is not installed"


def _try_ways(path: str, version: str) -> Apptainer:
    problems = []
    with tempfile.TemporaryDirectory(prefix="parbench-probe-") as work:
        folder, image = Path(work) / "probe", Path(work) / "probe.sif"
        _tiny(folder)
        tried = [(image, [path, "build", str(image), str(folder)], None, False)]
        # A file needs a mount, a folder does not.
        for target, unpacked in ((image, False), (folder, True)):
            for flags in WAYS:
                words = [path, "exec", *flags, "--contain", str(target), "/bin/true"]
                tried.append((target, words, flags, unpacked))
        for target, words, flags, unpacked in tried:
            if flags is not None and not target.exists():
                continue
            done = _ask(words)
            if done is None:
                problems.append(f"no answer within {SECONDS} s: {shlex.join(words)}")
            elif done.returncode:
                problems.append(last_error(done.stderr))
            elif flags is not None:
                return Apptainer(path, version, flags, unpacked)
    told = "; ".join(dict.fromkeys(problems))
    mend = next((mend for pattern, mend in MENDS if re.search(pattern, told)), INSTALL)
    return Apptainer(
        path, version, trouble=f"Apptainer {version} runs no image here: {told}. {mend}", mend=mend
    )


def _tiny(folder: Path) -> None:
    """A root folder that holds /bin/true of this machine, with the libraries that it names."""
    true = os.path.realpath(shutil.which("true") or "/bin/true")
    libraries = _ask(["ldd", true])  # none: a system with one static program for all
    for name in ("bin", "dev", "etc", "proc", "sys", "tmp", "var/tmp"):
        (folder / name).mkdir(parents=True)
    for source in re.findall(r"/\S+", libraries.stdout if libraries else ""):
        target = folder / source.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    shutil.copy(true, folder / "bin" / "true")


def _ask(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    """Run a command; None where it does not start, or not end."""
    options = {"env": clean_environment(), "stdin": subprocess.DEVNULL, "timeout": SECONDS}
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)
    except (OSError, subprocess.TimeoutExpired):
        return None


def last_error(text: str) -> str:
    """The last line in which Apptainer says what is wrong, without colours and its own prefix."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    telling = [line for line in lines if re.match(r"(FATAL|ERROR)\b", line)] or lines[-1:]
    return re.sub(r"^(FATAL|ERROR)\s*:\s*", "", telling[-1]) if telling else "no message"


def require(found: Apptainer, why: str) -> None:
    """ParbenchError when no image runs here. ``why``: who asked for one."""
    if found.trouble is not None:
        raise ParbenchError(f"{why}, but {found.trouble}")


def lacking_subids() -> str | None:
    """Why this user cannot build images, with what mends it; None where there is a range of ids.

    Without one, an ordinary user's build cannot set the owners of files, and root cannot build at
    all where it has fewer capabilities than root usually has.
    """
    user = os.environ.get("USER") if os.getuid() else "root"
    for path in (Path("/etc/subuid"), Path("/etc/subgid")):
        text = path.read_text("utf-8", "replace") if path.exists() else ""
        lines = re.findall(r"^([^:\s]+):\d+:(\d+)\s*$", text, re.MULTILINE)
        if not any(who in (user, str(os.getuid())) and int(n) >= SUBIDS for who, n in lines):
            mend = f"sudo make system, or: usermod --add-subuids 200000-{199_999 + SUBIDS}"
            mend += f" --add-subgids 200000-{199_999 + SUBIDS} {user}"
            return f"no range of ids for {user} in {path}; {mend}"
    return None


def clean_environment() -> dict[str, str]:
    """This process's variables without those that would bend what Apptainer does here.

    A user's APPTAINER_BIND would let folders in that nobody stated. Folders for temporary files
    and keys, and registry logins, stay the user's.
    """
    kept = ("TMPDIR", "CACHEDIR", "CONFIGDIR", "DOCKER_USERNAME", "DOCKER_PASSWORD")
    return {
        name: value
        for name, value in os.environ.items()
        if not re.match(r"(APPTAINER|SINGULARITY)(ENV)?_", name) or name.split("_", 1)[1] in kept
    }


def enter(
    found: Apptainer,
    image: Path,
    words: Sequence[str],
    *,
    binds: Sequence[Path],
    variables: Mapping[str, str],
    gpu: bool = False,
    temporary: Path | None = None,
    folder: Path | None = None,
) -> tuple[list[str], dict[str, str]]:
    """The command that runs ``words`` inside ``image``, and the variables that it needs outside.

    ``binds`` are the only folders of the host that are seen inside, in their own places;
    ``variables`` the only variables; ``temporary`` becomes /tmp; ``folder`` is the working folder.
    """
    assert found.program is not None
    command = [found.program, "--quiet", "exec", *found.flags]
    command += ["--contain", "--cleanenv", "--no-home", "--no-mount", "bind-paths,hostfs,cwd"]
    if gpu:
        command += ["--nv"]
    if temporary is not None:
        command += ["--workdir", str(temporary)]
    for bind in dict.fromkeys([*binds, *NAMES]):
        command += ["--mount", mount(bind)]
    if folder is not None:
        command += ["--pwd", str(folder)]
    outside = {f"APPTAINERENV_{name}": value for name, value in variables.items()}
    return [*command, str(image), *words], outside


def mount(path: Path, inside: str | None = None) -> str:
    """A folder, in its own place or ``inside``, as `--mount` takes it: quoted as in CSV."""
    fields = ("type=bind", f"source={path}", f"destination={inside or path}")
    return ",".join('"' + field.replace('"', '""') + '"' for field in fields)


def shown(words: Sequence[str], variables: Mapping[str, str]) -> str:
    """A command with its variables, to paste."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return " ".join([*assignments, shlex.join(words)])
