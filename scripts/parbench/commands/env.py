"""Set up the environment once from a lock file; every `make` target then runs in it.

    parbench env ensure                    # set it up if needed, and print its folder
    parbench env ensure spark horovod      # with packages that only some studies need
    parbench env exec -- python -m pytest  # set it up, then run a program in it

Packages that only some studies need are added on request: by name, all of them with `ensure --all`,
or by `parbench report` for the studies that it runs. It also runs on a bare Python: `make env`.
"""

import argparse

ANYWHERE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add both actions."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    ensure = actions.add_parser("ensure", help="set up the environment and print its folder")
    ensure.add_argument("packages", nargs="*", metavar="PACKAGES", help="optional packages to add")
    ensure.add_argument("--all", action="store_true", help="add all optional packages")
    enter = actions.add_parser("exec", help="set up the environment and run a program in it")
    enter.add_argument("--add", action="append", default=[], help="optional packages to add")
    enter.add_argument("program", nargs="+", help="-- program and its arguments")
    for action in (ensure, enter):
        action.add_argument("--stack", default="current", help="a folder of containers/locks/")


def run(options: argparse.Namespace) -> None:
    """Set up the environment and print its folder, or run the program in place of this process."""
    from parbench.deploy import host_environment

    if options.action == "exec":
        folder = host_environment.ensure(options.stack)
        host_environment.add(options.add, options.stack)
        host_environment.execute(folder, options.program)
    names = host_environment.optional(options.stack) if options.all else options.packages
    host_environment.require_optional(names, options.stack)
    folder = host_environment.ensure(options.stack)
    host_environment.add(names, options.stack, retry=True)
    print(folder)
