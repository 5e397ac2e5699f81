"""Build the images with the cells' software, once for all checkouts; list them, or run in one.

python scripts/images.py build                  # all images of the stack that do not exist yet
python scripts/images.py list                   # the images, and whether they exist
python scripts/images.py run report -- python3  # a program inside one
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from parbench.deploy import containers, recipes
from parbench.errors import ParbenchError, run_main
from parbench.files import user_path, write_json
from parbench.plan import config_files
from parbench.words import nearest


def planned(arguments: argparse.Namespace) -> tuple[str, recipes.ImageSettings]:
    """Return the stack, and `images` of the configuration."""
    if arguments.plan is not None:
        return containers.read_plan(arguments.plan)
    config = config_files.read(arguments.configfile)
    return arguments.stack or config.stack, config.images.settings


def show(one: recipes.Image) -> None:
    """Print one line about an image."""
    if facts := one.facts:
        size = f"{one.path.stat().st_size / 2**20:,.0f} MiB, sha256 {facts['sha256'][:12]}"
        print(f"{one.label:<36} {size:<36} {one.path}")
    else:
        print(f"{one.label:<36} missing")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--stack", help="a folder of containers/locks/; default: config.yaml's")
    common.add_argument(
        "--configfile",
        type=user_path,
        action="append",
        default=[],
        help="laid over config.yaml",
    )
    common.add_argument("--plan", type=Path, help="results/plan/images.json, instead of these")
    commands = parser.add_subparsers(dest="action", required=True)
    build = commands.add_parser("build", parents=[common], help="build what is not there")
    build.add_argument("names", nargs="*", help="default: all")
    build.add_argument("--out", type=Path, help="digest file to write, for one image")
    commands.add_parser("list", parents=[common], help="images and whether they are there")
    run = commands.add_parser("run", parents=[common], help="a program inside an image")
    run.add_argument("names", nargs=1, metavar="name")
    run.add_argument("program", nargs="+", help="-- program and its arguments")
    arguments = parser.parse_args()
    stack, settings = planned(arguments)
    names = recipes.names(stack)
    for name in (requested := getattr(arguments, "names", None) or names):
        if name not in names:
            reason = f"containers/ holds no {name}.def{nearest(name, names)}"
            raise ParbenchError(f"there is no image {name!r}: {reason}")
    for image in [recipes.image(name, stack, settings) for name in requested]:
        if arguments.action == "list":
            show(image)
        elif arguments.action == "run":
            with tempfile.TemporaryDirectory(prefix="parbench-") as folder:
                command, variables = containers.inside(
                    image, settings, arguments.program, Path(folder)
                )
                return subprocess.run(command, env=variables, check=False).returncode
        else:
            path = containers.ensure(image, settings)["path"]
            if arguments.out is None:
                print(path)
            else:  # cells depend on this file, which changes when the image does
                write_json(arguments.out, {"image": image.name, "key": image.key})
    return 0


if __name__ == "__main__":
    run_main(main)
