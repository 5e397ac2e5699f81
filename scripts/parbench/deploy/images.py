"""Images: what a cell's software is, known by content, built once for all checkouts.

An image's name holds the digest of all that decides its content: its recipe
(containers/<name>.def), lock file, build arguments and parent. It lies in
`$PARBENCH_CACHE/images/`, with its bill of materials (`.cdx.json`) and its build log beside it, and
is there when what it is (`.json`) is there.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from parbench import cache, strategies
from parbench.cell import Cell
from parbench.deploy import apptainer, build
from parbench.errors import ParbenchError
from parbench.files import digest, read_json, sha256_file, write_json

ROOT = Path(__file__).resolve().parents[3]
RECIPES = ROOT / "containers"
LAYOUT = 2  # raised when build.py builds images that older ones cannot stand for
# Arguments of a recipe that `images.arguments` of the configuration may choose.
BUILD_CHOICES = ("bootstrap", "from", "mirror", "gpu")


def folder() -> Path:
    """Where images lie."""
    return cache.folder() / "images"


# ---------------------------------------------------------------- what an image is


@dataclass(frozen=True)
class Image:
    """An image as its recipe, or as a .sif file, ``given``, that stands in for it.

    ``key``: SHA-256 of what decides its content.
    """

    name: str
    stack: str | None  # None where it has no lock file: both stacks share it
    key: str
    arguments: tuple[tuple[str, str], ...] = ()
    lock: Path | None = None
    parent: Image | None = None
    given: str | None = None

    @property
    def label(self) -> str:
        """torch-current-0123456789ab."""
        return "-".join(filter(None, (self.name, self.stack, self.key[:12])))

    @property
    def recipe(self) -> Path:
        """What builds it."""
        return RECIPES / f"{self.name}.def"

    @property
    def path(self) -> Path:
        """The image's file."""
        return Path(self.given) if self.given else self.beside(".sif")

    @property
    def entry(self) -> Path:
        """What `apptainer exec` takes: the unpacked image where there is one, else the file."""
        unpacked = self.beside(".unpacked")
        return unpacked if unpacked.is_dir() else self.path

    def beside(self, ending: str) -> Path:
        """A file about the image, in the cache, also where the image itself was given."""
        return folder() / f"{self.label}{ending}"


def names() -> list[str]:
    """The images that there are recipes for."""
    return sorted(path.stem for path in RECIPES.glob("*.def"))


def image(name: str, stack: str, settings: dict) -> Image:
    """The image ``name`` of ``stack``; ``settings`` are ``images`` of the configuration."""
    chosen = tuple(tuple(sorted(settings[key].items())) for key in ("arguments", "given"))
    return _image(name, stack, chosen)


def of_cell(cell: Cell, settings: dict) -> Image:
    """The image that ``cell`` runs in: its strategy names it."""
    return image(strategies.load(cell.strategy.name).IMAGE, cell.stack, settings)


@functools.cache
def _image(name: str, stack: str, settings: tuple) -> Image:
    asked, given = (dict(part) for part in settings)
    if name in given:
        return Image(name, stack, _key_of_given(name, given[name]), given=given[name])
    text = (RECIPES / f"{name}.def").read_text(encoding="utf-8")
    known = defaults(text)
    arguments = {key: asked.get(key, value) for key, value in known.items() if key in BUILD_CHOICES}
    lock = RECIPES / "locks" / stack / known["lock"] if "lock" in known else None
    if lock is not None and not lock.is_file():
        raise ParbenchError(f"stack {stack!r}: {name}.def needs {lock}, which is not there")
    parent = _image(known["parent"], stack, settings) if "parent" in known else None
    programs = [path for path in RECIPES.glob("*.py") if path.name in text]
    parts = {
        "layout": LAYOUT,
        "recipe": _meaning(text),
        "shared": _meaning((RECIPES / "post.sh").read_text(encoding="utf-8")),
        "lock": lock and sha256_file(lock),
        # A mirror is where, not what.
        "arguments": {key: value for key, value in arguments.items() if key != "mirror"},
        "parent": parent and parent.key,
        "programs": [ast.dump(ast.parse(path.read_bytes())) for path in sorted(programs)],
    }
    shared = lock is None and parent is None
    stack = None if shared else stack
    return Image(name, stack, digest(parts), tuple(arguments.items()), lock, parent)


def defaults(recipe: str) -> dict[str, str]:
    """The recipe's %arguments with their defaults."""
    section = re.search(r"^%arguments\n(.*?)(?=^%|\Z)", recipe, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"^\s*([a-z]+)=(.*)$", section[1] if section else "", re.MULTILINE))


def _meaning(recipe: str) -> str:
    """A recipe without comments of its own lines, blank lines and blanks at ends of lines."""
    lines = (line.rstrip() for line in recipe.splitlines())
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))


def _key_of_given(name: str, given: str) -> str:
    path = Path(given)
    if not path.is_absolute() or not os.path.isfile(path):  # False also for a name that is too long
        where = f"config.yaml: images.given.{name}"
        raise ParbenchError(f"{where}: {given!r} is no file; give the absolute path of a .sif")
    # A large file is read again only when its size or time changed.
    stamp = [path.stat().st_size, path.stat().st_mtime_ns]
    kept = folder() / "given" / f"{digest(given)[:16]}.json"
    with contextlib.suppress(ParbenchError, KeyError, TypeError):
        known = read_json(kept)
        if known["stamp"] == stamp:
            return known["sha256"]
    cache.say(f"reading {path} for its digest (once)")
    write_json(kept, {"stamp": stamp, "sha256": (value := sha256_file(path))})
    return value


def known(wanted: Image) -> dict | None:
    """What is known of an image that is there; None where it must be made first."""
    there = wanted.beside(".json").is_file() and wanted.path.is_file()
    return read_json(wanted.beside(".json")) if there else None


def obstacle(stack: str, settings: dict) -> str | None:
    """Why the images of ``stack`` are not in the cache and cannot be built here; else None."""
    wanted = [image(name, stack, settings) for name in names()]
    to_build = [one for one in wanted if one.given is None and known(one) is None]
    if cache.BUNDLE.is_dir():  # its images are all that this machine will have
        none = len(to_build) == len(wanted)
        return "bundle/ holds no images of this stack" if none else None
    ways = {dict(one.arguments).get("bootstrap") for one in to_build}
    if "debootstrap" in ways and build.debootstrap() is None:
        return "this user cannot build images: no debootstrap; sudo make system"
    if to_build and (lack := apptainer.lacking_subids()):
        return f"this user cannot build images: {lack}"
    return None


# ---------------------------------------------------------------- ensure


def ensure(wanted: Image, settings: dict) -> dict:
    """Build the image unless it is there, and return what it is.

    {label, key, path, sha256, python, packages, ...}: ``path`` is what `apptainer exec` takes, a
    file or a folder. Two at once build once. ParbenchError.
    """
    facts = file(wanted, settings)
    # Every start decompresses a mounted file anew: importing torch takes 6.4 s instead of 2.8.
    if settings["unpack"] and wanted.entry == wanted.path:
        with cache.locked(wanted.beside(".lock"), f"the image {wanted.label}"):
            if wanted.entry == wanted.path:
                build.unpack(wanted)
    path = wanted.entry if settings["unpack"] else wanted.path
    return {**facts, "path": str(path)}


def file(wanted: Image, settings: dict) -> dict:
    """As ensure, for who does not want to run it: the file, not unpacked."""
    apptainer.require(apptainer.probe(), f"the image {wanted.label} is needed")
    if known(wanted) is None:
        with cache.locked(wanted.beside(".lock"), f"the image {wanted.label}"):
            if known(wanted) is None:
                if wanted.parent is not None:
                    file(wanted.parent, settings)
                build.make(wanted, settings)
    return read_json(wanted.beside(".json"))


# ---------------------------------------------------------------- inside


def inside(
    wanted: Image, settings: dict, words: list[str], temporary: Path
) -> tuple[list[str], dict[str, str]]:
    """The command that runs ``words`` in the image, in this folder, and its whole environment.

    ``temporary`` is the image's /tmp.
    """
    command, outside = apptainer.enter(
        apptainer.probe(),
        Path(ensure(wanted, settings)["path"]),
        words,
        binds=work_folders(),
        variables={"MPLCONFIGDIR": "/tmp/matplotlib"},  # noqa: S108  (the image's own)
        temporary=temporary,
        folder=Path.cwd(),
    )
    return command, {**apptainer.clean_environment(), **outside}


def work_folders(*more: Path) -> list[Path]:
    """What a program inside may see of the host: the checkout, and where its results really lie."""
    found = [ROOT]
    for path in (ROOT / "results", *more):
        for place in (path.resolve(), path.absolute()):
            if place.exists() and not any(place.is_relative_to(other) for other in found):
                found.append(place)
    return found


def write_digest(path: Path, one: Image) -> None:
    """The small file that cells depend on: it changes when the image's content does."""
    write_json(path, {"image": one.name, "key": one.key})


def read_plan(path: Path) -> tuple[str, dict]:
    """results/plan/images.json, which the workflow writes: (stack, settings)."""
    plan = read_json(path)
    return plan["stack"], plan["settings"]


class Software:
    """What cells in images have: the answers that machine.Software gives for this machine."""

    def __init__(self, settings: dict):
        self.gpu = settings["arguments"].get("gpu", "none")
        self.given = settings["given"]

    def without_horovod(self) -> str | None:
        """None: it is compiled into its image."""
        return None

    def without_nccl(self) -> str | None:
        """Why Horovod cannot join GPUs; a given image is asked by train.py."""
        if self.gpu != "nccl" and "horovod" not in self.given:
            return "needs an image of Horovod with NCCL: images.arguments.gpu: nccl in config.yaml"
        return None
