"""Write an archive for a machine without network: checkout, images, data, packages.

There, `tar xf`, `cd` and `make report` are all it takes. Datasets and published weights lie in
results/, images and the compiled Horovod in bundle/cache, which replaces the cache if bundle/
exists (parbench/cache.py), and a wheel of every package in bundle/wheels, from which uv installs
(environment.py).
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from parbench import git
from parbench.cache import say
from parbench.deploy import environment, images, uv
from parbench.errors import ParbenchError
from parbench.files import atomic_path, sha256_file

ROOT = Path(__file__).resolve().parents[3]
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Contents:
    """What the configured studies need: images, and folders below results/ such as data/digits.

    ``stack``: of the host's environment, in which the workflow itself runs.
    """

    stack: str
    images: list[images.Image]
    folders: list[str]


def require_clean() -> None:
    """Raise ParbenchError if this checkout has uncommitted changes, which would not travel."""
    changed = [line[3:] for line in git.run(ROOT, "status", "--porcelain").splitlines()]
    if changed:
        raise ParbenchError(
            f"this checkout is not what was committed: {', '.join(changed[:3])}; commit it first"
        )


def fetch_wheels(stack: str, place: Path) -> None:
    """Fetch a wheel of every package in the stack's lock file and list them with their digests.

    Packages that exist only as source are built here, since the other machine has no compiler.
    """
    say("packages: fetching a wheel of each, checked by SHA-256")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--require-hashes", "--quiet"]
    command += ["--no-input"]
    command += ["--wheel-dir", str(place / "wheels")]
    command += ["--requirement", str(environment.locks(stack) / "host.txt")]
    variables = {**uv.installer_environment(), "TMPDIR": str(place)}
    if uv.run_masked(command, sys.stderr, env=variables):
        raise ParbenchError(f"pip cannot fetch the packages; {uv.HELP}")
    lines = []
    for wheel in sorted((place / "wheels").iterdir()):
        name, version = wheel.name.split("-")[:2]
        lines.append(f"{name}=={version} --hash=sha256:{sha256_file(wheel)}\n")
    (place / f"{stack}.txt").write_text("".join(lines), encoding="utf-8")
    (place / "python").write_text(PYTHON, encoding="utf-8")


def archive_names(contents: Contents, place: Path) -> dict[str, Path]:
    """Return {name in the archive: path} of everything below bundle/ and results/."""
    path_by_name = {"bundle": place}
    for image in contents.images:
        for path in (image.path, image.beside(".json"), image.beside(".cdx.json")):
            path_by_name[f"bundle/cache/images/{path.name}"] = path
    horovod_folder = environment.horovod_place(contents.stack)
    if wheel := environment.horovod_wheel(horovod_folder):
        path_by_name[f"bundle/cache/wheels/{horovod_folder.name}/{wheel.name}"] = wheel
    return path_by_name | {
        f"results/{folder}": ROOT / "results" / folder for folder in contents.folders
    }


def write(out: Path, contents: Contents) -> None:
    """Write the archive ``out``, completely or not at all."""
    top = f"parbench-{version()}"
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as work:
        checkout, bundle = Path(work, "checkout"), Path(work, "bundle")
        bundle.mkdir()
        # With its history.
        git.run(ROOT, "clone", "--quiet", "--no-local", "--no-tags", str(ROOT), str(checkout))
        git.run(checkout, "remote", "remove", "origin")
        fetch_wheels(contents.stack, bundle)
        say(f"writing {out}")
        with atomic_path(out) as part, tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
            tar.add(checkout, top, filter=without_owner)
            for name, path in archive_names(contents, bundle).items():
                tar.add(path, f"{top}/{name}", filter=without_owner)


def without_owner(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove the owner of an archive entry: git distrusts checkouts of other users."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def version() -> str:
    """Return the checked-out tag or commit in a form fit for file names."""
    return git.run(ROOT, "describe", "--tags", "--always").replace("/", "-")
