"""Write an archive for a machine without network: checkout, images, data, packages.

On that machine, `tar xf`, `cd` and `make report` are enough. The archive has datasets and published
weights in results/, images and the compiled Horovod in bundle/cache, which replaces the cache if
bundle/ exists (parbench/cache.py), and a wheel of every package in bundle/wheels, from which uv
installs (host_environment.py). A bare archive of some 40 MiB is for a machine that has torch: it
contains what else `make measure` needs, and no images.
"""

from __future__ import annotations

import math
import re
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from parbench import git
from parbench.cache import print_message
from parbench.deploy import host_environment, recipes, uv
from parbench.errors import ParbenchError
from parbench.files import atomic_path, read_text, sha256_file

ROOT = Path(__file__).resolve().parents[3]
# Packages of pyproject.toml that measuring does not need: they are for reports, the dataset digits,
# images and installing.
NOT_MEASURING = {"scipy", "scikit-learn", "typst", "pygments", "cyclonedx-bom", "uv"}
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Contents:
    """What the configured studies need: images, and folders such as results/data/digits.

    ``stack``: of the host's environment, in which the workflow itself runs; ``bare``: whether the
    archive is for a machine that has torch; ``most_mib``: largest size of a bare archive, in MiB.
    """

    stack: str
    images: list[recipes.Image]
    folders: list[str]
    bare: bool = False
    most_mib: float = math.inf


def require_clean() -> None:
    """Raise ParbenchError if this checkout has uncommitted changes, which would not be packed."""
    changed = [line[3:] for line in git.run(ROOT, "status", "--porcelain").splitlines()]
    if changed:
        raise ParbenchError(
            f"this checkout has uncommitted changes: {', '.join(changed[:3])}; commit them first"
        )


def measuring() -> set[str]:
    """Return the packages that measuring needs and a machine with torch lacks.

    Dependencies are those of the packages in this environment.
    """
    project = tomllib.loads(read_text(ROOT / "pyproject.toml"))["project"]
    names = {canonicalize_name(Requirement(line).name) for line in project["dependencies"]}
    there = _with_dependencies(host_environment.BARE, ())
    return _with_dependencies(names - NOT_MEASURING - there, there)


def _with_dependencies(names: Iterable[str], without: Collection[str]) -> set[str]:
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found or name in without:
            continue
        found.add(name)
        for requirement in map(Requirement, metadata.requires(name) or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found


def _locked(stack: str, names: set[str] | None) -> str:
    """Return the stack's lock file, or the part of it that pins ``names``."""
    text = read_text(host_environment.locks(stack) / "host.txt")
    pins = re.findall(r"^((\S+)==[^\n]*\\\n(?: +--hash=\S+(?: \\)?\n)+)", text, re.MULTILINE)
    return text if names is None else "".join(pin for pin, name in pins if name in names)


def fetch_wheels(stack: str, place: Path, names: set[str] | None = None) -> None:
    """Fetch a wheel of every package in the stack's lock file; list them with their digests.

    ``names``: fetch only these. Packages that exist only as source are built, since the other
    machine may have no compiler.
    """
    print_message("packages: fetching a wheel of each, checked by SHA-256")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--require-hashes", "--quiet"]
    command += ["--no-input"]
    command += ["--wheel-dir", str(place / "wheels")]
    (place / "requirements.txt").write_text(_locked(stack, names), encoding="utf-8")
    command += ["--requirement", str(place / "requirements.txt")]
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
    horovod_folder = host_environment.horovod_place(contents.stack)
    if wheel := host_environment.horovod_wheel(horovod_folder):
        path_by_name[f"bundle/cache/wheels/{horovod_folder.name}/{wheel.name}"] = wheel
    return path_by_name | {folder: ROOT / folder for folder in contents.folders}


def write(out: Path, contents: Contents) -> None:
    """Write the archive ``out``, completely or not at all."""
    top = f"parbench-{version()}"
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as work:
        checkout, bundle = Path(work, "checkout"), Path(work, "bundle")
        bundle.mkdir()
        # The archive has the git history, unless it must be small.
        depth = ["--depth", "1"] if contents.bare else []
        arguments = ["clone", "--quiet", "--no-local", "--no-tags", *depth]
        git.run(
            ROOT, *arguments, f"file://{quote(str(ROOT))}" if depth else str(ROOT), str(checkout)
        )
        git.run(checkout, "remote", "remove", "origin")
        fetch_wheels(contents.stack, bundle, measuring() if contents.bare else None)
        if contents.bare:
            (bundle / host_environment.BARE_MARK).touch()
        print_message(f"writing {out}")
        form = {"format": tarfile.PAX_FORMAT, "dereference": False}
        with atomic_path(out) as part:
            with tarfile.open(part, "w:gz" if contents.bare else "w", **form) as tar:
                tar.add(checkout, top, filter=without_owner)
                for name, path in archive_names(contents, bundle).items():
                    tar.add(path.resolve(), f"{top}/{name}", filter=without_owner)
            _check_size(part, contents, [*(bundle / "wheels").iterdir(), checkout])


def _check_size(part: Path, contents: Contents, parts: list[Path]) -> None:
    """Raise ParbenchError, which names the largest parts, if the archive is too large."""
    size = part.stat().st_size / 2**20
    if size <= contents.most_mib:
        return
    sizes = {path.name: _size(path) for path in parts}
    sizes |= {folder: _size((ROOT / folder).resolve()) for folder in contents.folders}
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
    raise ParbenchError(
        f"the archive has {size:.0f} MiB, but --most-mib is {contents.most_mib:g}; its largest "
        f"parts are {', '.join(f'{name} ({sizes[name]:.0f} MiB)' for name in largest)}; choose "
        "fewer studies or smaller data, or allow more"
    )


def _size(path: Path) -> float:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(each.stat().st_size for each in files if each.is_file()) / 2**20


def without_owner(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove the owner of an archive entry: git distrusts checkouts of other users."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def version() -> str:
    """Return the checked-out tag or commit in a form fit for file names."""
    return git.run(ROOT, "describe", "--tags", "--always").replace("/", "-")
