"""Build Apptainer images, once for all checkouts, and run programs in them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from parbench import cache
from parbench.cell import Cell, Pair
from parbench.deploy import apptainer, build
from parbench.deploy.recipes import Image, ImageSettings, image, of_cell
from parbench.files import read_record
from parbench.measure.environment import ImageFacts

ROOT = Path(__file__).resolve().parents[3]
# The images that most studies need; the others are for texts, Spark and ZeRO.
USUAL = ("torch", "horovod", "report")
COST = "in some six minutes on two idle cores, 20 GB"  # all USUAL ones and what they are based on


def obstacle(stack: str, settings: ImageSettings) -> str | None:
    """Return why cells of ``stack`` run in images only if a user asks for it, or None.

    Ignores images that only some studies need.
    """
    images = [image(name, stack, settings) for name in USUAL]
    if cache.BUNDLE.is_dir():  # no other images can be built without network
        any_built = any(one.facts for one in images)
        return None if any_built else "bundle/ has no images of this stack"
    if all(one.facts for one in images):
        return None
    docker = settings.arguments.get("bootstrap") == "docker"
    return apptainer.cannot_build(debootstrap=not docker) or (
        f"its images are not built yet; `deployment: apptainer` builds them first, {COST}"
    )


# ---------------------------------------------------------------- ensure


class BuiltImage(ImageFacts):
    """What is known of an image, and the path of its file or folder."""

    path: str


def ensure(wanted: Image, settings: ImageSettings) -> BuiltImage:
    """Build the image unless it exists, and return its facts and ``path``, a file or a folder.

    Concurrent calls build it once. Raises ParbenchError.
    """
    apptainer.require(f"the image {wanted.label} is needed")
    # A start from the file decompresses it: importing torch takes 6.4 s instead of 2.8. The base
    # image is never started, so it is not unpacked.
    unpack = settings.unpack and wanted.parent is not None
    if wanted.facts is None or (unpack and not wanted.is_unpacked):
        with cache.locked(wanted.beside(".lock"), f"the image {wanted.label}"):
            if wanted.facts is None:
                if wanted.parent is not None:
                    ensure(wanted.parent, replace(settings, unpack=False))
                build.make(wanted, settings.arguments.get("mirror"))
            if unpack and not wanted.is_unpacked:
                build.unpack(wanted)
    assert wanted.facts is not None
    return {**wanted.facts, "path": str(wanted.unpacked if unpack else wanted.path)}


def recheck(wanted: Image) -> None:
    """Discard an unpacked image whose files were changed or deleted, as by a disk clean-up.

    The next cell unpacks it again. Compares only names, sizes and times.
    """
    record = wanted.beside(".unpacked.json")
    if (
        wanted.is_unpacked
        and build.listing(wanted.unpacked) != read_record(record, "listing")["listing"]
    ):
        cache.print_message(
            f"{wanted.unpacked}: files were changed or deleted; it will be unpacked again"
        )
        record.unlink(missing_ok=True)


# ---------------------------------------------------------------- inside


def inside(
    wanted: Image, settings: ImageSettings, arguments: list[str], temporary: Path
) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs ``arguments`` in the image, in this folder, and its environment.

    ``temporary``: becomes /tmp inside.
    """
    return apptainer.enter(
        Path(ensure(wanted, settings)["path"]),
        arguments,
        binds=work_folders(),
        variables={
            "MPLCONFIGDIR": "/tmp/matplotlib",  # noqa: S108  (the image's own)
            "PYTHONPATH": str(ROOT / "scripts"),  # for `python -m parbench`
        },
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


def of_sides(cell: Cell | Pair, plan: Path) -> list[BuiltImage | None]:
    """Build the image of each side of ``cell`` if needed; return their facts, None on the host.

    ``plan``: results/plan/images.json, written by the workflow.
    """
    if cell.deployment != "apptainer":
        return [None] * len(cell.sides)
    _, settings = read_plan(plan)
    return [ensure(of_cell(side, settings), settings) for side in cell.sides]


def planned(stack: str, settings: ImageSettings) -> dict[str, object]:
    """Return the content of results/plan/images.json."""
    return {"stack": stack, "settings": asdict(settings)}


def read_plan(path: Path) -> tuple[str, ImageSettings]:
    """Read results/plan/images.json; return (stack, settings)."""
    plan = read_record(path, "stack", "settings")
    return plan["stack"], ImageSettings(**plan["settings"])
