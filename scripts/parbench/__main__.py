"""Rebuild published benchmarks of parallel training, cell by cell.

`parbench COMMAND --help` describes a command. Each command is a file in parbench/commands; it runs
in the project's folder, unless it states ANYWHERE.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from parbench import variables
from parbench.errors import ParbenchError
from parbench.exits import run_main
from parbench.plan import places
from parbench.words import nearest

COMMANDS = Path(__file__).with_name("commands")
# The folders of commands, by the heading of the help that lists them.
FOLDERS = {
    "commands": COMMANDS,
    "called by the workflow": COMMANDS / "called",
}


def names(folder: Path) -> list[str]:
    """Return the names of the commands in ``folder``."""
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def load(name: str) -> ModuleType:
    """Import only the command ``name``. Raises ParbenchError if it does not exist."""
    for folder in FOLDERS.values():
        if name in names(folder):
            package = ".".join(folder.relative_to(COMMANDS.parent).parts)
            return importlib.import_module(f"parbench.{package}.{name}")
    known = [name for folder in FOLDERS.values() for name in names(folder)]
    near = nearest(name, known, listed=False) or "; `parbench --help` lists them"
    raise ParbenchError(f"there is no command {name!r}{near}")


def parser_of(name: str, command: ModuleType) -> argparse.ArgumentParser:
    """Return the parser of ``command``."""
    parser = argparse.ArgumentParser(
        prog=f"parbench {name}",
        description=command.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    return parser


def listed() -> str:
    """Return a line for each command: its name, and the first line of its docstring."""
    lines = []
    for heading, folder in FOLDERS.items():
        lines.append(f"\n{heading}:")
        for name in names(folder):
            text = ast.get_docstring(ast.parse((folder / f"{name}.py").read_text("utf-8")))
            lines.append(f"  {name:<12} {(text or '').partition(chr(10))[0]}")
    return "\n".join(lines).strip("\n")


def main(words: Sequence[str]) -> int | None:
    """Run the command with the arguments ``words``; return its status. Raises ParbenchError."""
    parser = argparse.ArgumentParser(
        prog="parbench",
        usage="parbench COMMAND ...",
        description=__doc__,
        epilog=listed(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", help=argparse.SUPPRESS)
    name = parser.parse_args(words[:1]).command
    command = load(name)
    parser = parser_of(name, command)
    options, others = parser.parse_known_args(words[1:])
    if name in names(COMMANDS) and not getattr(command, "ANYWHERE", False):
        places.require_root(f"parbench {name}")
    if "snakemake" in options:
        options.snakemake = others
    elif others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    return command.run(options)


def begin() -> None:
    """Run the command on this process's command line, and exit."""
    variables.enter()  # before a library reads the variables
    run_main(lambda: main(sys.argv[1:]))


if __name__ == "__main__":
    sys.argv[0] = str(variables.PROGRAM)  # the path that runs the command again
    begin()
