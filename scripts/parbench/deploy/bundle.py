"""An archive for a machine without network: checkout, images, data, packages.

There, `tar xf`, `cd` and `make report` do what they do here. What the archive brings along lies
where it is looked for anyway: datasets and published weights in results/, images and the compiled
Horovod in bundle/cache, which is the cache wherever there is a bundle/ (parbench/cache.py), and a
wheel of every package in bundle/wheels, from which uv installs (environment.py).
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from parbench.cache import say
from parbench.deploy import environment, images, uv
from parbench.errors import ParbenchError
from parbench.files import atomic_path, sha256_file

ROOT = Path(__file__).resolve().parents[3]
GB_OF_WHEELS = 4  # torch with its CUDA libraries, before anything is fetched
TOO_LARGE = 27  # EFBIG

README = """\
{top}: parbench for a machine without network

It needs: Linux ({platform}), {python}, make{apptainer}; {room} GB of disk.

    tar xf {archive}
    cd {top}
    make report{arguments}

The report is then reports/final.html and reports/final.pdf. The first start checks bundle/ by
SHA-256, sets the environment up from bundle/wheels and needs no network, nor does any later one;
bundle/ must stay: it is the cache, too.
"""


@dataclass(frozen=True)
class Contents:
    """What the configured studies need: their images, and folders below results/, as data/digits.

    ``configfiles``: where files of --configfile go, and where they are.
    """

    stack: str
    images: list[images.Image]
    folders: list[str]
    configfiles: dict[str, Path]


def git(*words: str, folder: Path = ROOT) -> str:
    """What git prints. ParbenchError with its reason."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise ParbenchError(
            "git, which copies the checkout, is missing: sudo apt install git"
        ) from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ParbenchError(f"git {words[0]} in {folder}: {reason}")
    return done.stdout.rstrip("\n")


def require_clean(dirty: bool, studies: Iterable[str], configfiles: Iterable[str]) -> None:
    """ParbenchError when what lies here is not what the archive would hold.

    ``dirty``: changes to tracked files travel too, and only files that git does not know are left.
    """
    if Path(git("rev-parse", "--show-toplevel")).resolve() != ROOT:
        raise ParbenchError(f"{ROOT} is no git checkout of its own; clone parbench and bundle that")
    lines = git("status", "--porcelain", "--untracked-files=all").splitlines()
    lines = [line for line in lines if line[3:].strip('"') not in configfiles]
    if lines and not dirty:
        shown = ", ".join(line[3:] for line in lines[:3]) + ", ..." * (len(lines) > 3)
        raise ParbenchError(
            f"this checkout is not what was committed: {shown}; commit it, or take tracked files "
            'as they are: make bundle ARGS="--dirty" (git add makes a new file a tracked one)'
        )
    tracked = git("ls-files", "studies").splitlines()
    for study in studies:
        if f"studies/{study}.yaml" not in tracked:
            raise ParbenchError(
                f"studies/{study}.yaml would not travel: git does not track it; git add it"
            )


def copy_checkout(target: Path, dirty: bool) -> None:
    """A clone of what is checked out, with its history and no word of where it lay."""
    words = ("--quiet", "--no-local", "--single-branch", "--no-tags", "--template=")
    git("clone", *words, str(ROOT), str(target))
    git("remote", "remove", "origin", folder=target)
    shutil.rmtree(target / ".git" / "logs", ignore_errors=True)
    changes = subprocess.run(
        ["git", "-C", str(ROOT), "diff", "--binary", "HEAD"], capture_output=True, check=True
    ).stdout
    if dirty and changes:
        command = ["git", "-C", str(target), "apply", "--whitespace=nowarn"]
        subprocess.run(command, input=changes, check=True)


def fetch_wheels(stack: str, place: Path) -> None:
    """A wheel of every package of the stack's lock file, and a list of them with their digests.

    What the package registry has as source only is built here: the other machine has no tools.
    """
    say("packages: fetching a wheel of each, checked by SHA-256")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--require-hashes", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--quiet"]
    command += [
        "--wheel-dir",
        str(place / "wheels"),
        "-r",
        str(environment.locks(stack) / "host.txt"),
    ]
    variables = {**uv.clean_environment(), "TMPDIR": str(place)}
    done = subprocess.run(command, env=variables, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ParbenchError(f"pip: {done.stderr.strip().splitlines()[-1:]}; is the network there?")
    lines = []
    for wheel in sorted((place / "wheels").iterdir()):
        name, version = wheel.name.split("-")[:2]
        lines.append(f"{name}=={version} --hash=sha256:{sha256_file(wheel)}\n")
    (place / f"{stack}.txt").write_text("".join(lines), encoding="utf-8")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (place / "python").write_text(version, encoding="utf-8")


def brought(contents: Contents, stack: str, place: Path) -> dict[str, Path]:
    """Every file below bundle/ and results/, by its name in the archive."""
    found = {}
    for path in sorted(place.rglob("*")):
        if path.is_file():
            found[f"bundle/{path.relative_to(place)}"] = path
    for image in contents.images:
        for path in (image.path, *map(image.beside, (".json", ".cdx.json"))):
            ending = path.name.removeprefix(image.label) if path != image.path else ".sif"
            found[f"bundle/cache/images/{image.label}{ending}"] = path
    compiled = environment.horovod_place(stack)
    if wheel := environment.horovod_wheel(compiled):
        found[f"bundle/cache/wheels/{compiled.name}/{wheel.name}"] = wheel
    for folder in contents.folders:
        for path in sorted((ROOT / "results" / folder).glob("*")):
            if path.is_file() and not path.name.startswith("."):
                found[f"results/{folder}/{path.name}"] = path
    return found


def write(out: Path, contents: Contents, stack: str, *, dirty: bool) -> None:
    """Gather everything and write the archive ``out``, or nothing.

    ``stack``: of the host's environment, which cells in images need for the workflow itself.
    """
    top = f"parbench-{version()}-{contents.stack}"
    size = sum(path.stat().st_size for path in brought(contents, stack, Path("none")).values())
    require_disk(out.parent, size + 2e9 * GB_OF_WHEELS)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as work:
        checkout, place = Path(work, "checkout"), Path(work, "bundle")
        place.mkdir()
        copy_checkout(checkout, dirty)
        for name, path in contents.configfiles.items():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, checkout / name)
        fetch_wheels(stack, place)
        files = brought(contents, stack, place)
        size = sum(path.stat().st_size for path in files.values())
        say(f"writing {out}: {size / 1e9:.1f} GB")
        sums = "".join(f"{sha256_file(path)}  {name}\n" for name, path in sorted(files.items()))
        (place / "SHA256SUMS").write_text(sums, encoding="utf-8")
        (checkout / "README-bundle.txt").write_text(readme(contents, out, top, size), "utf-8")
        with atomic_path(out) as part, tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
            tar.add(checkout, top, filter=nobodys)
            for name, path in files.items() | {("bundle/SHA256SUMS", place / "SHA256SUMS")}:
                tar.add(path, f"{top}/{name}", filter=nobodys)


def nobodys(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """An entry of the archive without its owner; a second name of a file is a file of its own."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = int(info.mtime)
    return info


def version() -> str:
    """The tag or commit that is checked out, as part of a file's name."""
    return git("describe", "--tags", "--always", "--dirty").replace("/", "-")


def require_disk(folder: Path, size: float) -> None:
    """ParbenchError when ``folder`` has less than ``size`` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise ParbenchError(
            f"{folder}: {free / 1e9:.1f} GB are free, the archive needs {size / 1e9:.1f} while it"
            ' is written; free some, or choose another disk: make bundle ARGS="--out <file>"'
        )


def readme(contents: Contents, out: Path, top: str, size: int) -> str:
    """What a person on the other machine must know."""
    words = shlex.join(["--configfile", *contents.configfiles]) if contents.configfiles else ""
    text = README.format(
        platform=environment.python_identity()[1],
        python=f"Python {sys.version_info.major}.{sys.version_info.minor}",
        apptainer=" and Apptainer" if contents.images else "",
        # the archive, unpacked; the environment; the images, unpacked
        room=round(
            2 * size / 1e9 + 7 + sum(2 * i.path.stat().st_size for i in contents.images) / 1e9
        ),
        archive=shlex.quote(out.name),
        top=shlex.quote(top),
        arguments=f" ARGS={shlex.quote(words)}" if words else "",
    )
    for image in contents.images:
        if image.is_file:
            text += (
                f"\nThe configuration names the image {image.name} by a path: copy "
                f"bundle/cache/images/{image.label}.sif to\n{image.given} there, or name its new "
                f"place (images.given.{image.name}).\n"
            )
    return text


def sifted(error: OSError, out: Path) -> ParbenchError:
    """A failure to write, in a sentence."""
    if error.errno in uv.DISK_FULL:
        return ParbenchError(f"{error.filename or out}: the disk is full; nothing half is left")
    if error.errno == TOO_LARGE:
        return ParbenchError(
            f"{out}: this disk takes no file of that size (FAT32: 4 GB); format it as exFAT or ext4"
        )
    return ParbenchError(f"{error.filename or out}: {error.strerror or error}")
