"""The host environment: set up once from a lock file, then entered by every `make` target.

    python3 scripts/environment.py ensure                    # set up if need be, print its folder
    python3 scripts/environment.py exec -- python -m pytest  # the same, then run a program in it

`ensure` compiles Horovod, too; `exec` only with --horovod. Runs on a bare Python.
"""

import sys

if sys.hexversion < 0x030B0000:  # said before anything that an older Python cannot import
    sys.exit(
        f"error: parbench needs Python 3.11 or newer, {sys.executable} is older; Debian and Ubuntu:"
        " sudo apt install python3.11, then: make PYTHON=python3.11 ..."
    )

import argparse
from pathlib import Path

from parbench.deploy import environment
from parbench.errors import run_main


def main() -> int:
    """Parse the arguments and act."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("ensure", "set up, print the folder"), ("exec", "set up, run a program")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--stack", default="current", help="a folder of containers/locks/")
        command.add_argument(
            "--retry-horovod", action="store_true", help="build Horovod again where it failed"
        )
        if name == "exec":
            command.add_argument("--horovod", action="store_true", help="compile Horovod, too")
            command.add_argument(
                "--unlock", action="store_true", help="release the lock of a killed Snakemake"
            )
            command.add_argument("program", nargs="+", help="-- program and its arguments")
    arguments = parser.parse_args()
    folder = environment.ensure(arguments.stack)
    if arguments.command == "ensure" or arguments.horovod or arguments.retry_horovod:
        environment.ensure_horovod(arguments.stack, retry=arguments.retry_horovod)
    if arguments.command == "exec":
        if arguments.unlock:
            environment.release_stale_lock(Path.cwd(), folder)
        environment.execute(folder, arguments.program)
    print(folder)
    return 0


if __name__ == "__main__":
    run_main(main)
