"""Build or list the images that hold the cells' software, or run a program in one.

    parbench images build                  # all images of the stack that do not exist yet
    parbench images list                   # the images, and whether they exist
    parbench images run report -- python3  # run a program in an image, which can import parbench

Images are built once for all checkouts (docs/images.md).
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

from parbench.arguments import add_configfile

ANYWHERE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the three actions."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--stack", help="a folder of containers/locks/; default: config.yaml's")
    add_configfile(common, beside=True)
    common.add_argument("--plan", type=Path, help="results/plan/images.json, instead of these")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = actions.add_parser("build", parents=[common], help="build images that do not exist")
    build.add_argument("names", nargs="*", help="default: all")
    build.add_argument("--out", type=Path, help="digest file to write, for one image")
    actions.add_parser("list", parents=[common], help="list images and whether they exist")
    enter = actions.add_parser("run", parents=[common], help="run a program in an image")
    enter.add_argument("names", nargs=1, metavar="name")
    enter.add_argument("program", nargs="+", help="-- program and its arguments")


def run(options: argparse.Namespace) -> int:
    """Build, list or enter images; return the status of the program that ran inside."""
    from parbench.deploy import containers, recipes
    from parbench.errors import ParbenchError
    from parbench.files import write_json
    from parbench.words import nearest

    stack, settings = _planned(options)
    names = recipes.names(stack)
    for name in (requested := getattr(options, "names", None) or names):
        if name not in names:
            reason = f"containers/ has no {name}.def{nearest(name, names)}"
            raise ParbenchError(f"there is no image {name!r}: {reason}")
    for image in [recipes.image(name, stack, settings) for name in requested]:
        if options.action == "list":
            print(recipes.described(image))
        elif options.action == "run":
            with tempfile.TemporaryDirectory(prefix="parbench-") as folder:
                command, variables = containers.inside(
                    image, settings, options.program, Path(folder)
                )
                return subprocess.run(command, env=variables, check=False).returncode
        else:
            path = containers.ensure(image, settings)["path"]
            if options.out is None:
                print(path)
            else:  # cells depend on this file, which changes when the image does
                write_json(options.out, {"image": image.name, "key": image.key})
    return 0


def _planned(options):
    """Return the stack, and `images` of the configuration."""
    from parbench.deploy import containers

    if options.plan is not None:
        return containers.read_plan(options.plan)
    from parbench.plan import config_files

    config = config_files.read(options.configfile)
    return options.stack or config.stack, config.images.settings
