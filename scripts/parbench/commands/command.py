"""Print the command that trains a cell, ready to paste.

Standard error names what must be made first, if anything.
"""

import argparse
import shlex
import sys

from parbench.commands import cells


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the cell, the configuration and the studies."""
    parser.add_argument("cell", help="id, or a unique part of it (parbench cells lists all)")
    cells.add_arguments(parser, beside=True)


def run(options: argparse.Namespace) -> None:
    """Print the command."""
    from parbench.errors import ParbenchError
    from parbench.launch.cell_commands import Task
    from parbench.plan import expansion, places, state, writing

    plan = expansion.of_files(options.configfile, options.study)
    cell_id = state.find(options.cell, plan)
    if cell_id in plan.not_run:
        raise ParbenchError(f"{cell_id} is not run here: {plan.not_run[cell_id]}")
    cell = plan.cells[cell_id]
    writing.write(plan)
    missing = [] if state.described_data(cell) else [state.data_path(cell)]
    missing += state.missing_weights(cell)
    # On standard error, so that the command on standard output can be piped and pasted.
    if missing:
        arguments = next(
            study.arguments for study in plan.studies.values() if cell_id in study.runnable()
        )
        make = shlex.join(["snakemake", *map(str, missing), *arguments])
        print(f"its data do not exist yet; first: {make}", file=sys.stderr)
    home, data = places.folder(cell_id), places.RESULTS / "data" / cell.dataset.name
    files = [home / name for name in ("metrics.json", "log.txt")]
    print(Task(cell, home / "cell.json", data, *files).typed())
