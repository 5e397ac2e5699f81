"""Write one archive for a machine without network: checkout, images, data and packages.

    make bundle                                            # parbench-<version>.tar, here
    make bundle ARGS="--out /media/disk/x.tar --configfile mine.yaml"
    make bundle ARGS="--bare --configfile mine.yaml"       # for a machine that has torch

The archive holds the commit that is checked out, the images, converted datasets and published
weights of the configured studies, and a wheel for every package of the host environment, for this
Python and platform. What does not exist yet is made first; the archive is renamed when complete.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from parbench.arguments import duration
from parbench.deploy import bundle, containers, host_environment, recipes
from parbench.deploy.deployment import Deployment
from parbench.errors import ParbenchError, run_main
from parbench.files import user_path
from parbench.plan import config_files, expansion, state


def needed(
    plan: expansion.Plan, deployment: Deployment, stack: str, bare: bool, most_mib: float
) -> bundle.Contents:
    """Return images, datasets and published weights of all cells, runnable here or not.

    ``bare``: a dataset that is a folder of images in this checkout travels as it is, since image
    files are the smaller form.
    """
    sides = [side for cell in plan.cells.values() for side in cell.sides]
    needed_images = {image for side in sides if (image := state.image_of(side, plan))}
    if deployment.in_images:
        needed_images.add(recipes.image("report", plan.stack, plan.images))
    folders = set()
    for name in {side.dataset.name for side in sides}:
        path = Path(plan.datasets[name].get("path", "/"))
        as_it_is = bare and not path.is_absolute() and ".." not in path.parts and path.is_dir()
        folders.add(path.as_posix() if as_it_is else f"results/data/{name}")
    pretrained = (side.model.pretrained for side in sides)
    folders |= {f"results/weights/{each.weights}" for each in pretrained if each}
    ordered = sorted(needed_images, key=lambda image: image.label)
    return bundle.Contents(stack, ordered, sorted(folders), bare, most_mib)


def prepare(contents: bundle.Contents, settings: recipes.ImageSettings, overlay: list[str]) -> None:
    """Make data (with the workflow) and images that do not exist yet."""
    command = [sys.executable, "-m", "snakemake", "--quiet", "all", "--rerun-incomplete"]
    made = [folder for folder in contents.folders if folder.startswith("results/")]
    command += [f"{folder}/digest.json" for folder in made]
    variables = {**os.environ, "PARBENCH_CLOSING": "make"}  # no results to print
    if (
        made
        and subprocess.run([*command, *overlay], env=variables, check=False, stdout=2).returncode
    ):
        raise ParbenchError("the data of the studies cannot be made; see the error above")
    for image in contents.images:
        containers.ensure(image, replace(settings, unpack=False))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=user_path, help="default: parbench-<version>.tar, here")
    parser.add_argument(
        "--configfile",
        type=user_path,
        nargs="+",
        default=[],
        help="committed; laid over config.yaml",
    )
    parser.add_argument(
        "--bare",
        action="store_true",
        help=f"for measuring on a machine that has {', '.join(host_environment.BARE)}",
    )
    parser.add_argument(
        "--most-mib", type=duration, default=60, help="of a bare archive (default: 60)"
    )
    parser.add_argument("--environment", default="current", help="stack of the host environment")
    arguments = parser.parse_args()
    configfiles = arguments.configfile
    bundle.require_clean()
    bare, most_mib = arguments.bare, arguments.most_mib if arguments.bare else math.inf
    config = config_files.read(configfiles)
    config = config.model_copy(update={"deployment": "host"}) if bare else config
    deployment = config.resolved_deployment()
    plan = expansion.plan(config, deployment, configfiles)
    contents = needed(plan, deployment, arguments.environment, bare, most_mib)
    name = f"parbench-{bundle.version()}.tar{'.gz' * bare}"  # git ignores it
    out = (arguments.out or Path(name)).absolute()
    out = out / name if out.is_dir() else out
    overlay = ["--configfile", *map(str, configfiles)] if configfiles else []
    prepare(contents, plan.images, overlay)
    bundle.write(out, contents)
    print(
        f"{out}  {out.stat().st_size / 2**20:,.0f} MiB\n"
        f"The other machine needs Linux ({host_environment.python_identity()[1]}), "
        f"{bundle.PYTHON}, make{' and Apptainer' if contents.images else ''}"
        f"{' with ' + ', '.join(host_environment.BARE) if bare else ''}; there: tar xf, cd, make "
        + ("measure MINUTES=9" if bare else "report")
        + f' ARGS="{" ".join(overlay)}"' * bool(configfiles)
    )


if __name__ == "__main__":
    run_main(main)
