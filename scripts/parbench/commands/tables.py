"""Write a study's table as CSV: statistics over seeds, published values, verdicts.

    parbench tables --plan results/plan/quickstart.json

writes results/tables/quickstart.csv, with the cells that are done. docs/verdicts.md says what its
columns mean.
"""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the files to read and to write."""
    parser.add_argument("--plan", type=Path, required=True, help="results/plan/<study>.json")
    parser.add_argument(
        "--cells",
        type=Path,
        default=Path("results/cells"),
        help="folder of the cells' folders (default: %(default)s)",
    )
    parser.add_argument(
        "--published", type=Path, nargs="+", help="CSV files of published values (default: all)"
    )
    parser.add_argument(
        "--certificate", type=Path, nargs="*", help="certificates of equivalence (default: none)"
    )
    parser.add_argument(
        "--out", type=Path, help="CSV to write (default: results/tables/<study>.csv)"
    )


def run(options: argparse.Namespace) -> None:
    """Write the table."""
    from parbench.plan import places
    from parbench.verdicts import tables

    published = options.published or list(map(Path, places.published_files()))
    out = options.out or Path("results/tables", f"{options.plan.stem}.csv")
    tables.write(options.plan, options.cells, published, options.certificate, out)
