"""Identify Apptainer images by all that determines their content.

An image's name contains a digest of its recipe (containers/<name>.def), lock file, build arguments
and parent. It is kept in `$PARBENCH_CACHE/images/` with its bill of materials (`.cdx.json`) and
build log. It exists once its facts (`.json`) are written.
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass, field
from pathlib import Path

from parbench import cache, strategies
from parbench.cell import Cell
from parbench.errors import ParbenchError
from parbench.files import digest, read_record, read_text, sha256_file
from parbench.measure.environment import ImageFacts

RECIPES = Path(__file__).resolve().parents[3] / "containers"
LAYOUT = 2  # raise it to stop the use of images that older versions built
# The arguments of a recipe that `images.arguments` of the configuration may set.
BUILD_CHOICES = ("bootstrap", "from", "mirror", "gpu")


@dataclass(frozen=True)
class ImageSettings:
    """`images` of the configuration.

    ``arguments``: the build arguments that it sets; ``unpack``: whether images are unpacked.
    """

    arguments: dict[str, str] = field(default_factory=dict)
    unpack: bool = False


@dataclass(frozen=True)
class Image:
    """An image as its recipe describes it. ``key``: SHA-256 of all that determines its content."""

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
    def facts(self) -> ImageFacts | None:
        """{label, python, packages, sha256} of an existing image; None if it does not exist."""
        exists = self.path.is_file() and self.beside(".json").is_file()
        keys = ("label", "python", "packages", "sha256")
        return read_record(self.beside(".json"), *keys) if exists else None

    @property
    def is_unpacked(self) -> bool:
        """Whether the folder has the complete content of this image file."""
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


def image(name: str, stack: str, settings: ImageSettings) -> Image:
    """Return the image ``name`` of ``stack``."""
    return _image(name, stack, tuple(sorted(settings.arguments.items())))


def of_cell(cell: Cell, settings: ImageSettings) -> Image:
    """Return the image in which ``cell`` runs."""
    name = strategies.image(cell.strategy.name, cell.model.name)
    return image(name, cell.stack, settings)


@functools.cache
def _image(name: str, stack: str, requested: tuple[tuple[str, str], ...]) -> Image:
    text = read_text(RECIPES / f"{name}.def")
    defaults = _arguments(text)
    arguments = {key: value for key, value in defaults.items() if key in BUILD_CHOICES}
    arguments |= {key: value for key, value in requested if key in arguments}
    lock = RECIPES / "locks" / stack / defaults["lock"] if "lock" in defaults else None
    if lock is not None and not lock.is_file():
        raise ParbenchError(f"stack {stack!r}: {name}.def needs {lock}, which does not exist")
    parent = _image(defaults["parent"], stack, requested) if "parent" in defaults else None
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


def described(one: Image) -> str:
    """Return a line about an image: its size, digest and path if it exists."""
    if facts := one.facts:
        size = f"{one.path.stat().st_size / 2**20:,.0f} MiB, sha256 {facts['sha256'][:12]}"
        return f"{one.label:<36} {size:<36} {one.path}"
    return f"{one.label:<36} missing"
