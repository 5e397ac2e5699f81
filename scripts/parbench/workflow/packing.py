"""Make and pack what studies need on a machine without network (`parbench bundle`)."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from parbench import programs
from parbench.deploy import bundle, containers, host_environment, recipes
from parbench.deploy.deployment import Deployment
from parbench.errors import ParbenchError
from parbench.plan import config_files, expansion, state


def _needed(
    plan: expansion.Plan, deployment: Deployment, stack: str, bare: bool, most_mib: float
) -> bundle.Contents:
    """Return images, datasets and published weights of all cells, whether they can run here or not.

    ``bare``: pack a dataset that is a folder of images in this checkout unconverted, since image
    files are smaller.
    """
    sides = [side for cell in plan.cells.values() for side in cell.sides]
    needed_images = {image for side in sides if (image := state.image_of(side, plan))}
    if deployment.in_images:
        needed_images.add(recipes.image("report", plan.stack, plan.images))
    folders: set[str] = set()
    for name in {side.dataset.name for side in sides}:
        path = Path(plan.datasets[name].get("path", "/"))
        as_it_is = bare and not path.is_absolute() and ".." not in path.parts and path.is_dir()
        folders.add(path.as_posix() if as_it_is else f"results/data/{name}")
    pretrained = (side.model.pretrained for side in sides)
    folders |= {f"results/weights/{each.weights}" for each in pretrained if each}
    ordered = sorted(needed_images, key=lambda image: image.label)
    return bundle.Contents(stack, ordered, sorted(folders), bare, most_mib)


def _prepare(
    contents: bundle.Contents, settings: recipes.ImageSettings, overlay: list[str]
) -> None:
    """Make data (by the workflow) and images that do not exist yet."""
    made = [folder for folder in contents.folders if folder.startswith("results/")]
    words = [f"{folder}/digest.json" for folder in made]
    if made and programs.snakemake(*words, *overlay, output=sys.stderr):
        raise ParbenchError("the data of the studies cannot be made; see the error above")
    for image in contents.images:
        containers.ensure(image, replace(settings, unpack=False))


def write(
    out: Path | None, configfiles: Sequence[Path], stack: str, bare: bool, most_mib: float
) -> None:
    """Write the archive to ``out``, a file or a folder, and print what the other machine needs.

    ``configfiles`` override config.yaml; ``stack``: of the host environment; ``bare``: make a small
    archive that can only measure, of at most ``most_mib`` MiB. Raises ParbenchError.
    """
    bundle.require_clean()
    most_mib = most_mib if bare else math.inf
    config = config_files.read(configfiles)
    config = config.model_copy(update={"deployment": "host"}) if bare else config
    deployment = config.resolved_deployment()
    plan = expansion.plan(config, deployment)
    contents = _needed(plan, deployment, stack, bare, most_mib)
    name = f"parbench-{bundle.version()}.tar{'.gz' * bare}"  # git ignores it
    out = (out or Path(name)).absolute()
    out = out / name if out.is_dir() else out
    overlay = ["--configfile", *map(str, configfiles)] if configfiles else []
    _prepare(contents, plan.images, overlay)
    bundle.write(out, contents)
    print(
        f"{out}  {out.stat().st_size / 2**20:,.0f} MiB\n"
        f"The other machine needs Linux ({host_environment.python_identity()[1]}), "
        f"{bundle.PYTHON}, make{' and Apptainer' if contents.images else ''}"
        f"{' with ' + ', '.join(host_environment.BARE) if bare else ''}; there: tar xf, cd, make "
        + ("measure MINUTES=9" if bare else "report")
        + f' ARGS="{" ".join(overlay)}"' * bool(configfiles)
    )
