"""Images: what a cell's software is, known by content, built once for all checkouts.

An image's name holds the digest of all that decides its content: its recipe
(containers/<name>.def), lock file, build arguments and parent. It lies in
`$PARBENCH_CACHE/images/`, with its bill of materials (`.cdx.json`) and its build log beside it, and
is there when what it holds (`.json`) is there.
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from pathlib import Path

from parbench import cache, strategies
from parbench.cell import Cell, Pair
from parbench.deploy import apptainer, build, environment
from parbench.errors import ParbenchError
from parbench.files import digest, read_json, sha256_file

ROOT = Path(__file__).resolve().parents[3]
RECIPES = ROOT / "containers"
LAYOUT = 2  # raised when build.py builds images that older ones cannot stand for
# Arguments of a recipe that `images.arguments` of the configuration may choose.
BUILD_CHOICES = ("bootstrap", "from", "mirror", "gpu")


# ---------------------------------------------------------------- what an image is


@dataclass(frozen=True)
class Image:
    """An image as its recipe describes it. ``key``: SHA-256 of what decides its content."""

    name: str
    stack: str | None  # None where it has no lock file: both stacks share it
    key: str
    arguments: tuple[tuple[str, str], ...]
    lock: Path | None
    parent: Image | None

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
        return self.beside(".sif")

    @property
    def unpacked(self) -> Path:
        """The folder that cells start from, where it is there."""
        return self.beside(".unpacked")

    @property
    def facts(self) -> dict | None:
        """{label, python, packages, sha256} of an image that is there; None for one that is not."""
        there = self.path.is_file() and self.beside(".json").is_file()
        return read_json(self.beside(".json")) if there else None

    def beside(self, ending: str) -> Path:
        """A file of the image in the cache."""
        return cache.folder() / "images" / f"{self.label}{ending}"


def names(stack: str) -> list[str]:
    """The images of ``stack``: recipes for which it has a lock file."""
    found = {path.stem: _arguments(path.read_text("utf-8")) for path in RECIPES.glob("*.def")}
    locks = RECIPES / "locks" / stack
    return sorted(name for name, known in found.items() if (locks / known.get("lock", "")).exists())


def image(name: str, stack: str, settings: dict) -> Image:
    """The image ``name`` of ``stack``; ``settings`` are ``images`` of the configuration."""
    return _image(name, stack, tuple(sorted(settings["arguments"].items())))


def of_cell(cell: Cell, settings: dict) -> Image:
    """The image that ``cell`` runs in."""
    name = strategies.image(cell.strategy.name, cell.model.name)
    return image(name, cell.stack, settings)


@functools.cache
def _image(name: str, stack: str, asked: tuple[tuple[str, str], ...]) -> Image:
    text = (RECIPES / f"{name}.def").read_text(encoding="utf-8")
    known = _arguments(text)
    arguments = {key: value for key, value in known.items() if key in BUILD_CHOICES}
    arguments |= {key: value for key, value in asked if key in arguments}
    lock = RECIPES / "locks" / stack / known["lock"] if "lock" in known else None
    if lock is not None and not lock.is_file():
        raise ParbenchError(f"stack {stack!r}: {name}.def needs {lock}, which is not there")
    parent = _image(known["parent"], stack, asked) if "parent" in known else None
    programs = sorted(path for path in RECIPES.glob("*.py") if path.name in text)
    parts = {
        "layout": LAYOUT,
        "recipe": _meaning(text),
        "shared": _meaning((RECIPES / "post.sh").read_text(encoding="utf-8")),
        "lock": lock and sha256_file(lock),
        # A mirror is where, not what.
        "arguments": {key: value for key, value in arguments.items() if key != "mirror"},
        "parent": parent and parent.key,
        "programs": [ast.dump(ast.parse(path.read_bytes())) for path in programs],
    }
    shared = lock is None and parent is None
    return Image(
        name, None if shared else stack, digest(parts), tuple(arguments.items()), lock, parent
    )


def _arguments(recipe: str) -> dict[str, str]:
    """The recipe's %arguments with their defaults."""
    section = re.search(r"^%arguments\n(.*?)(?=^%|\Z)", recipe, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"^\s*([a-z]+)=(.*)$", section[1] if section else "", re.MULTILINE))


def _meaning(recipe: str) -> str:
    """A recipe without lines of comments, blank lines and blanks at ends of lines."""
    lines = (line.rstrip() for line in recipe.splitlines())
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))


def obstacle(stack: str, settings: dict) -> str | None:
    """Why the images of ``stack`` are not in the cache and cannot be built here; else None.

    Images that few studies need (texts, Spark, ZeRO) are not considered.
    """
    usual = set(names(stack)) - {"base", *environment.more(stack)}
    wanted = [image(name, stack, settings) for name in usual]
    if cache.BUNDLE.is_dir():  # its images are all that this machine will have
        there = any(one.facts for one in wanted)
        return None if there else "bundle/ holds no images of this stack"
    if all(one.facts for one in wanted):
        return None
    docker = settings["arguments"].get("bootstrap") == "docker"
    return apptainer.cannot_build(debootstrap=not docker)


# ---------------------------------------------------------------- ensure


def ensure(wanted: Image, settings: dict) -> dict:
    """Build the image unless it is there, and return what it holds: its ``facts``.

    ``path`` in them is what `apptainer exec` takes, a file or a folder. Two at once build once.
    ParbenchError.
    """
    apptainer.require(f"the image {wanted.label} is needed")
    # Every start decompresses a mounted file anew: importing torch takes 6.4 s instead of 2.8.
    # What only other images stand on is never started.
    unpack = settings["unpack"] and wanted.parent is not None
    if wanted.facts is None or (unpack and not wanted.unpacked.is_dir()):
        with cache.locked(wanted.beside(".lock"), f"the image {wanted.label}"):
            if wanted.facts is None:
                if wanted.parent is not None:
                    ensure(wanted.parent, {**settings, "unpack": False})
                build.make(wanted, settings["arguments"].get("mirror"))
            if unpack and not wanted.unpacked.is_dir():
                build.unpack(wanted)
    return {**wanted.facts, "path": str(wanted.unpacked if unpack else wanted.path)}


# ---------------------------------------------------------------- inside


def inside(
    wanted: Image, settings: dict, words: list[str], temporary: Path
) -> tuple[list[str], dict[str, str]]:
    """The command that runs ``words`` in the image, in this folder, and its whole environment.

    ``temporary`` is the image's /tmp.
    """
    return apptainer.enter(
        Path(ensure(wanted, settings)["path"]),
        words,
        binds=work_folders(),
        variables={"MPLCONFIGDIR": "/tmp/matplotlib"},  # noqa: S108  (the image's own)
        temporary=temporary,
        folder=Path.cwd(),
    )


def work_folders(*more: Path) -> list[Path]:
    """What a program inside may see of the host: the checkout, and where its results really lie."""
    found = [ROOT]
    for path in (ROOT / "results", *more):
        for place in (path.resolve(), path.absolute()):
            if place.exists() and not any(place.is_relative_to(other) for other in found):
                found.append(place)
    return found


def of_sides(cell: Cell | Pair, plan: Path) -> list[dict | None]:
    """What the image of each side of ``cell`` is, as ``ensure`` tells it; None for one of the host.

    ``plan``: results/plan/images.json, which the workflow writes.
    """
    if cell.deployment == "host":
        return [None] * len(cell.sides)
    _, settings = read_plan(plan)
    return [ensure(of_cell(side, settings), settings) for side in cell.sides]


def read_plan(path: Path) -> tuple[str, dict]:
    """Read results/plan/images.json, which the workflow writes: (stack, settings)."""
    plan = read_json(path)
    return plan["stack"], plan["settings"]
