"""Render report.json as one HTML file or as a PDF."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the form and the files."""
    parser.add_argument("form", choices=["html", "pdf"], help="what to write")
    parser.add_argument("--data", type=Path, required=True, help="results/report.json")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")


def run(options: argparse.Namespace) -> None:
    """Write the file."""
    from parbench.files import read_record, write_atomically
    from parbench.reporting import render

    data = read_record(options.data, "title", "studies")
    made = render.render_html(data) if options.form == "html" else render.render_pdf(data)
    write_atomically(options.out, made)
