"""Expand studies into cells, and show each cell's state and the reasons for it."""

from __future__ import annotations

import argparse
import shlex
import sys

from parbench.errors import ParbenchError, run_main
from parbench.files import user_path
from parbench.plan import config_files, expansion, places, state, writing


def command(cell_id: str, plan: expansion.Plan) -> None:
    """Print the command that trains a cell, ready to paste."""
    from parbench.launch import cell_commands

    if cell_id in plan.not_run:
        raise ParbenchError(f"{cell_id} is not run here: {plan.not_run[cell_id]}")
    cell = plan.cells[cell_id]
    writing.write(plan)
    missing = [] if state.described_data(cell) else [state.data_path(cell)]
    missing += state.missing_weights(cell)
    # On standard error: the command on standard output is there to be piped and pasted.
    if missing:
        arguments = next(
            study.arguments for study in plan.studies.values() if cell_id in study.runnable()
        )
        make = shlex.join(["snakemake", *map(str, missing), *arguments])
        print(f"its data are not there yet; first: {make}", file=sys.stderr)
    cell_folder, data = places.folder(cell_id), places.RESULTS / "data" / cell.dataset.name
    files = [cell_folder / name for name in ("metrics.json", "log.txt")]
    print(cell_commands.Task(cell, cell_folder / "cell.json", data, *files).typed())


def _take_sources(parser: argparse.ArgumentParser, when: str) -> None:
    """Let ``parser`` take the words that say whose cells; their values end with ``when``."""
    for option, kind, text in (
        ("configfile", user_path, "laid over config.yaml"),
        ("study", str, "instead of `studies` in config.yaml"),
    ):
        more = {"type": kind, "action": "append", "default": [], "help": text}
        parser.add_argument(f"--{option}", dest=f"{option}_{when}", metavar=option.upper(), **more)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    _take_sources(parser, "first")
    subcommands = parser.add_subparsers(dest="action", required=True)
    subcommands.add_parser("list", help="all cells with their state")
    for name, text in (
        ("why", "why a cell would run again"),
        ("command", "the command that trains a cell, to paste"),
    ):
        subcommands.add_parser(name, help=text).add_argument(
            "cell", help="id, or a unique part of it"
        )
    for command_parser in subcommands.choices.values():
        _take_sources(command_parser, "last")
    arguments = parser.parse_args()
    places.require_root("cells.py")
    studies = [*arguments.study_first, *arguments.study_last]
    files = [*arguments.configfile_first, *arguments.configfile_last]
    config = config_files.read(files, {"studies": studies} if studies else {})
    plan = expansion.plan(config, config.resolved_deployment(), files)
    if arguments.action == "list":
        state.show_all(plan)
    else:
        cell_id = state.find(arguments.cell, plan)
        (state.show_why if arguments.action == "why" else command)(cell_id, plan)


if __name__ == "__main__":
    run_main(main)
