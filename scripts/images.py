"""Images: what a cell's software is, known by content, built once for all checkouts.

python scripts/images.py build                  # all images of the stack, unless they are there
python scripts/images.py list                   # which are there, what they are made from
python scripts/images.py run report -- python3  # a program inside one
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from parbench.deploy import images
from parbench.errors import ParbenchError, run_main
from parbench.plan import config as configuration


def planned(arguments: argparse.Namespace) -> tuple[str, dict]:
    """The stack, and `images` of the configuration."""
    if arguments.plan is not None:
        return images.read_plan(arguments.plan)
    config = configuration.read(arguments.configfile)
    return arguments.stack or config["stack"], config["images"]


def show(one: images.Image) -> None:
    """A line about an image."""
    facts, state = images.known(one), "missing"
    if facts is not None:
        state = f"{one.path.stat().st_size / 2**20:,.0f} MiB, sha256 {facts['sha256'][:12]}"
    print(f"{one.label:<36} {state:<36} {one.path if facts else ''}".rstrip())


def known_name(name: str) -> str:
    """``name``, if there is a recipe for it; else ParbenchError."""
    if name not in images.names():
        near = configuration.nearest(name, images.names())
        raise ParbenchError(f"there is no image {name!r}: containers/ holds no {name}.def{near}")
    return name


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--stack", help="a folder of containers/locks/; default: config.yaml's")
    common.add_argument("--configfile", action="append", default=[], help="laid over config.yaml")
    common.add_argument("--plan", type=Path, help="results/plan/images.json, instead of these")
    commands = parser.add_subparsers(dest="action", required=True)
    made = commands.add_parser("build", parents=[common], help="build what is not there")
    made.add_argument("names", nargs="*", help="default: all")
    made.add_argument("--out", type=Path, help="digest file to write, for one image")
    commands.add_parser("list", parents=[common], help="images and whether they are there")
    run = commands.add_parser("run", parents=[common], help="a program inside an image")
    run.add_argument("name")
    run.add_argument("program", nargs="+", help="-- program and its arguments")
    arguments = parser.parse_args()
    stack, settings = planned(arguments)
    if arguments.action == "run":
        one = images.image(known_name(arguments.name), stack, settings)
        with tempfile.TemporaryDirectory(prefix="parbench-") as temporary:
            command, variables = images.inside(one, settings, arguments.program, Path(temporary))
            return subprocess.run(command, env=variables, check=False).returncode
    asked = getattr(arguments, "names", None) or images.names()
    for one in [images.image(known_name(name), stack, settings) for name in asked]:
        if arguments.action == "list":
            show(one)
        elif arguments.out is None:
            print(images.ensure(one, settings)["path"])
        else:
            images.ensure(one, settings)
            images.write_digest(arguments.out, one)
    return 0


if __name__ == "__main__":
    run_main(main)
