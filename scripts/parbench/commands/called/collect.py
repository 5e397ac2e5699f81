"""Collect plans, tables and metrics into report.json and claims.json."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the files to read and to write."""
    parser.add_argument(
        "--plan", type=Path, nargs="+", required=True, help="results/plan/<study>.json"
    )
    parser.add_argument(
        "--table", type=Path, nargs="+", required=True, help="results/tables/<study>.csv"
    )
    parser.add_argument("--cells", type=Path, required=True, help="results/cells")
    parser.add_argument("--certificate", type=Path, nargs="*", help="of equivalence")
    parser.add_argument(
        "--claims", type=Path, nargs="+", default=[], help="default: none is judged"
    )
    parser.add_argument("--published", type=Path, nargs="*", help="CSV files of published values")
    parser.add_argument("--unfinished", action="store_true", help="the run stopped before its end")
    parser.add_argument(
        "--out", type=Path, required=True, help="report.json; claims.json is written beside it"
    )


def run(options: argparse.Namespace) -> None:
    """Write both files."""
    from parbench.reporting import report

    inputs = (options.plan, options.table, options.cells, options.certificate)
    report.write(options.out, *inputs, options.claims, options.published, options.unfinished)
