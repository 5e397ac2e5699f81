"""Apptainer images: identified by their inputs and built once for all checkouts.

An image's name contains a digest of all that decides its content: its recipe
(containers/<name>.def), lock file, build arguments and parent. It lies in
`$PARBENCH_CACHE/images/` with its bill of materials (`.cdx.json`) and build log. It exists once its
facts (`.json`) are written.
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from pathlib import Path

from parbench import cache, strategies
from parbench.cell import Cell, Pair
from parbench.deploy import apptainer, build
from parbench.errors import ParbenchError
from parbench.files import digest, read_record, read_text, sha256_file

ROOT = Path(__file__).resolve().parents[3]
RECIPES = ROOT / "containers"
LAYOUT = 2  # raise it when images built by older versions must not be used any more
# Images of most studies; the others are for texts, Spark and ZeRO.
USUAL = ("torch", "horovod", "report")
COST = "in some six minutes on two idle cores, 20 GB"  # all USUAL ones and what they are based on
# Arguments of a recipe that `images.arguments` of the configuration may set.
BUILD_CHOICES = ("bootstrap", "from", "mirror", "gpu")


# ---------------------------------------------------------------- images


@dataclass(frozen=True)
class Image:
    """An image as described by its recipe. ``key``: SHA-256 of all that decides its content."""

    name: str
    stack: str | None  # None without a lock file: the image is common to all stacks
    key: str
    arguments: tuple[tuple[str, str], ...]
    lock: Path | None
    parent: Image | None

    @property
    def label(self) -> str:
        """Its name and key, such as torch-current-0123456789ab."""
        return "-".join(filter(None, (self.name, self.stack, self.key[:12])))

    @property
    def recipe(self) -> Path:
        """The path of its recipe."""
        return RECIPES / f"{self.name}.def"

    @property
    def path(self) -> Path:
        """The path of the image file."""
        return self.beside(".sif")

    @property
    def unpacked(self) -> Path:
        """The folder with the unpacked image, from which cells start faster; it need not exist."""
        return self.beside(".unpacked")

    @property
    def facts(self) -> dict | None:
        """{label, python, packages, sha256} of an existing image; None if it does not exist."""
        exists = self.path.is_file() and self.beside(".json").is_file()
        keys = ("label", "python", "packages", "sha256")
        return read_record(self.beside(".json"), *keys) if exists else None

    @property
    def is_unpacked(self) -> bool:
        """Whether the folder is what this image file was unpacked to, complete."""
        record = self.beside(".unpacked.json")
        if self.facts is None or not self.unpacked.is_dir() or not record.is_file():
            return False
        return read_record(record, "sha256")["sha256"] == self.facts["sha256"]

    def beside(self, ending: str) -> Path:
        """Return the path of the image's file with this ``ending`` in the cache."""
        return cache.folder() / "images" / f"{self.label}{ending}"


def names(stack: str) -> list[str]:
    """Return the names of the images of ``stack``: recipes for which it has a lock file."""
    arguments_by_name = {path.stem: _arguments(read_text(path)) for path in RECIPES.glob("*.def")}
    locks = RECIPES / "locks" / stack
    if not locks.is_dir():
        raise ParbenchError(f"stack {stack!r}: there is no {locks}")
    return sorted(
        name
        for name, arguments in arguments_by_name.items()
        if (locks / arguments.get("lock", "")).exists()
    )


def image(name: str, stack: str, settings: dict) -> Image:
    """Return the image ``name`` of ``stack``; ``settings`` is `images` of the configuration."""
    return _image(name, stack, tuple(sorted(settings["arguments"].items())))


def of_cell(cell: Cell, settings: dict) -> Image:
    """Return the image in which ``cell`` runs."""
    name = strategies.image(cell.strategy.name, cell.model.name)
    return image(name, cell.stack, settings)


@functools.cache
def _image(name: str, stack: str, asked: tuple[tuple[str, str], ...]) -> Image:
    text = read_text(RECIPES / f"{name}.def")
    defaults = _arguments(text)
    arguments = {key: value for key, value in defaults.items() if key in BUILD_CHOICES}
    arguments |= {key: value for key, value in asked if key in arguments}
    lock = RECIPES / "locks" / stack / defaults["lock"] if "lock" in defaults else None
    if lock is not None and not lock.is_file():
        raise ParbenchError(f"stack {stack!r}: {name}.def needs {lock}, which is not there")
    parent = _image(defaults["parent"], stack, asked) if "parent" in defaults else None
    programs = sorted(path for path in RECIPES.glob("*.py") if path.name in text)
    parts = {
        "layout": LAYOUT,
        "recipe": _meaning(text),
        "shared": _meaning(read_text(RECIPES / "post.sh")),
        "lock": lock and sha256_file(lock),
        # A mirror does not change the content.
        "arguments": {key: value for key, value in arguments.items() if key != "mirror"},
        "parent": parent and parent.key,
        "programs": [ast.dump(ast.parse(path.read_bytes())) for path in programs],
    }
    shared = lock is None and parent is None
    return Image(
        name, None if shared else stack, digest(parts), tuple(arguments.items()), lock, parent
    )


def _arguments(recipe: str) -> dict[str, str]:
    """Return the recipe's %arguments with their defaults."""
    section = re.search(r"^%arguments\n(.*?)(?=^%|\Z)", recipe, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"^\s*([a-z]+)=(.*)$", section[1] if section else "", re.MULTILINE))


def _meaning(recipe: str) -> str:
    """Return a recipe without comment lines, blank lines and trailing blanks."""
    lines = (line.rstrip() for line in recipe.splitlines())
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))


def obstacle(stack: str, settings: dict) -> str | None:
    """Return why cells of ``stack`` do not run in images unless a user asks for it; else None.

    Ignores images that only some studies need.
    """
    images = [image(name, stack, settings) for name in USUAL]
    if cache.BUNDLE.is_dir():  # no other images can be built without network
        any_built = any(one.facts for one in images)
        return None if any_built else "bundle/ holds no images of this stack"
    if all(one.facts for one in images):
        return None
    docker = settings["arguments"].get("bootstrap") == "docker"
    return apptainer.cannot_build(debootstrap=not docker) or (
        f"its images are not built yet; `deployment: apptainer` builds them first, {COST}"
    )


# ---------------------------------------------------------------- ensure


def ensure(wanted: Image, settings: dict) -> dict:
    """Build the image unless it exists, and return its facts and ``path``, a file or a folder.

    Concurrent calls build it once. Raises ParbenchError.
    """
    apptainer.require(f"the image {wanted.label} is needed")
    # Starting from the file decompresses it each time: importing torch takes 6.4 s instead of 2.8.
    # The base image is never started, so it is not unpacked.
    unpack = settings["unpack"] and wanted.parent is not None
    if wanted.facts is None or (unpack and not wanted.is_unpacked):
        with cache.locked(wanted.beside(".lock"), f"the image {wanted.label}"):
            if wanted.facts is None:
                if wanted.parent is not None:
                    ensure(wanted.parent, {**settings, "unpack": False})
                build.make(wanted, settings["arguments"].get("mirror"))
            if unpack and not wanted.is_unpacked:
                build.unpack(wanted)
    return {**wanted.facts, "path": str(wanted.unpacked if unpack else wanted.path)}


def recheck(wanted: Image) -> None:
    """Forget an unpacked image whose files were changed or deleted, as clean-ups of disks do.

    The next cell unpacks it again. Looks at names, sizes and times alone.
    """
    record = wanted.beside(".unpacked.json")
    if (
        wanted.is_unpacked
        and build.listing(wanted.unpacked) != read_record(record, "listing")["listing"]
    ):
        cache.say(f"{wanted.unpacked}: files were changed or deleted; it will be unpacked again")
        record.unlink(missing_ok=True)


# ---------------------------------------------------------------- inside


def inside(
    wanted: Image, settings: dict, words: list[str], temporary: Path
) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs ``words`` in the image, in this folder, and its environment.

    ``temporary``: becomes /tmp inside.
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
    """Return the host folders visible inside: the checkout, results (links resolved), ``more``."""
    folders = [ROOT]
    for path in (ROOT / "results", *more):
        for folder in (path.resolve(), path.absolute()):
            if folder.exists() and not any(folder.is_relative_to(other) for other in folders):
                folders.append(folder)
    return folders


def of_sides(cell: Cell | Pair, plan: Path) -> list[dict | None]:
    """Ensure the image of each side of ``cell`` and return their facts; None without image.

    ``plan``: results/plan/images.json, written by the workflow.
    """
    if cell.deployment != "apptainer":
        return [None] * len(cell.sides)
    _, settings = read_plan(plan)
    return [ensure(of_cell(side, settings), settings) for side in cell.sides]


def read_plan(path: Path) -> tuple[str, dict]:
    """Read results/plan/images.json; return (stack, settings)."""
    plan = read_record(path, "stack", "settings")
    return plan["stack"], plan["settings"]
