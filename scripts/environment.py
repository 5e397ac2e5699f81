"""Set up the host environment once from a lock file; every `make` target then runs in it.

    python3 scripts/environment.py ensure                    # set up if needed, print its folder
    python3 scripts/environment.py ensure spark horovod      # with packages that few studies need
    python3 scripts/environment.py exec -- python -m pytest  # the same, then run a program in it

Packages that only some studies need come when they are asked for: by name, all with `ensure --all`,
or by `make report` for the studies that it runs. Runs on a bare Python.
"""

from __future__ import annotations

import argparse

from parbench.deploy import host_environment
from parbench.errors import run_main


def main() -> int:
    """Parse the arguments and act."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    ensure = commands.add_parser("ensure", help="set up, print the folder")
    ensure.add_argument("packages", nargs="*", metavar="PACKAGES", help="optional ones to add")
    ensure.add_argument("--all", action="store_true", help="add all optional packages")
    enter = commands.add_parser("exec", help="set up, run a program")
    enter.add_argument("--add", action="append", default=[], help="optional packages to add")
    enter.add_argument("program", nargs="+", help="-- program and its arguments")
    for command in (ensure, enter):
        command.add_argument("--stack", default="current", help="a folder of containers/locks/")
    arguments = parser.parse_args()
    if arguments.command == "exec":
        folder = host_environment.ensure(arguments.stack)
        host_environment.add(arguments.add, arguments.stack)
        host_environment.execute(folder, arguments.program)
    names = host_environment.optional(arguments.stack) if arguments.all else arguments.packages
    host_environment.require_optional(names, arguments.stack)
    folder = host_environment.ensure(arguments.stack)
    host_environment.add(names, arguments.stack, retry=True)
    print(folder)
    return 0


if __name__ == "__main__":
    run_main(main)
