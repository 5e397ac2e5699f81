"""An archive for a machine without network: checkout, images, data, packages.

There, `tar xf`, `cd` and `make report` do what they do here. What the archive brings along lies
where it is looked for anyway: datasets and published weights in results/, images and the compiled
Horovod in bundle/cache, which is the cache wherever there is a bundle/ (parbench/cache.py), and a
wheel of every package in bundle/wheels, from which uv installs (environment.py).
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from parbench.cache import say
from parbench.deploy import environment, images, uv
from parbench.errors import ParbenchError
from parbench.files import atomic_path, sha256_file

ROOT = Path(__file__).resolve().parents[3]
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Contents:
    """What the configured studies need: their images, and folders below results/, as data/digits.

    ``stack`` is that of the host's environment, which cells in images need for the workflow itself.
    """

    stack: str
    images: list[images.Image]
    folders: list[str]


def git(*words: str, folder: Path | None = None) -> str:
    """What git prints, in this checkout or in ``folder``. ParbenchError with its reason."""
    command = ["git", "-C", str(folder or ROOT), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ParbenchError(f"git {words[0]} in {folder or ROOT}: {done.stderr.strip()}")
    return done.stdout.rstrip("\n")


def require_clean() -> None:
    """ParbenchError when what lies here is not the commit that the archive would hold."""
    changed = [line[3:] for line in git("status", "--porcelain").splitlines()]
    if changed:
        raise ParbenchError(
            f"this checkout is not what was committed: {', '.join(changed[:3])}; commit it first"
        )


def fetch_wheels(stack: str, place: Path) -> None:
    """A wheel of every package of the stack's lock file, and a list of them with their digests.

    Packages that exist only as source are built here: the other machine has no compiler.
    """
    say("packages: fetching a wheel of each, checked by SHA-256")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--require-hashes", "--quiet"]
    command += ["--wheel-dir", str(place / "wheels")]
    command += ["--requirement", str(environment.locks(stack) / "host.txt")]
    variables = {**uv.clean_environment(), "TMPDIR": str(place)}
    if subprocess.run(command, env=variables, stdout=2, check=False).returncode:
        raise ParbenchError(f"pip cannot fetch the packages; {uv.HELP}")
    lines = []
    for wheel in sorted((place / "wheels").iterdir()):
        name, version = wheel.name.split("-")[:2]
        lines.append(f"{name}=={version} --hash=sha256:{sha256_file(wheel)}\n")
    (place / f"{stack}.txt").write_text("".join(lines), encoding="utf-8")
    (place / "python").write_text(PYTHON, encoding="utf-8")


def brought(contents: Contents, place: Path) -> dict[str, Path]:
    """Every file and folder below bundle/ and results/, by its name in the archive."""
    found = {"bundle": place}
    for image in contents.images:
        for path in (image.path, image.beside(".json"), image.beside(".cdx.json")):
            found[f"bundle/cache/images/{path.name}"] = path
    compiled = environment.horovod_place(contents.stack)
    if wheel := environment.horovod_wheel(compiled):
        found[f"bundle/cache/wheels/{compiled.name}/{wheel.name}"] = wheel
    return found | {f"results/{folder}": ROOT / "results" / folder for folder in contents.folders}


def write(out: Path, contents: Contents) -> None:
    """Gather everything and write the archive ``out``, or nothing."""
    top = f"parbench-{version()}"
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as work:
        checkout, place = Path(work, "checkout"), Path(work, "bundle")
        place.mkdir()
        # With its history.
        git("clone", "--quiet", "--no-local", "--no-tags", str(ROOT), str(checkout))
        git("remote", "remove", "origin", folder=checkout)
        fetch_wheels(contents.stack, place)
        say(f"writing {out}")
        with atomic_path(out) as part, tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
            tar.add(checkout, top, filter=nobodys)
            for name, path in brought(contents, place).items():
                tar.add(path, f"{top}/{name}", filter=nobodys)


def nobodys(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """An entry of the archive without its owner: git does not trust other users' checkouts."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def version() -> str:
    """The tag or commit that is checked out, as part of a file's name."""
    return git("describe", "--tags", "--always").replace("/", "-")
