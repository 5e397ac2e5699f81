"""Set up the host environment once from a lock file; every `make` target then runs in it.

    python3 scripts/environment.py ensure                    # set up if needed, print its folder
    python3 scripts/environment.py exec -- python -m pytest  # the same, then run a program in it

`ensure` also compiles Horovod, even if that failed before, and adds the packages for texts, Spark
and crates; `exec` does so only with --horovod and --more. Runs on a bare Python.
"""

from __future__ import annotations

import argparse

from parbench.deploy import environment
from parbench.errors import run_main


def main() -> int:
    """Parse the arguments and act."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    ensure = commands.add_parser("ensure", help="set up, print the folder")
    enter = commands.add_parser("exec", help="set up, run a program")
    for command in (ensure, enter):
        command.add_argument("--stack", default="current", help="a folder of containers/locks/")
    enter.add_argument("--horovod", action="store_true", help="compile Horovod, too")
    enter.add_argument("--more", help="add the packages of this lock file, such as crate")
    enter.add_argument("--unlock", action="store_true", help="release a killed Snakemake's lock")
    enter.add_argument("program", nargs="+", help="-- program and its arguments")
    arguments = parser.parse_args()
    folder = environment.ensure(arguments.stack)
    if arguments.command == "ensure":
        environment.ensure_horovod(arguments.stack, retry=True)
        for name in environment.more(arguments.stack):
            environment.ensure_more(name, arguments.stack)
        print(folder)
        return 0
    if arguments.horovod:
        environment.ensure_horovod(arguments.stack)
    if arguments.more:
        environment.ensure_more(arguments.more, arguments.stack)
    if arguments.unlock:
        environment.release_stale_lock(folder)
    environment.execute(folder, arguments.program)


if __name__ == "__main__":
    run_main(main)
