"""Fetch, verify and rename one file of published weights."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the entry of config.yaml and the files to write."""
    parser.add_argument("--name", required=True, help="the entry's key in config.yaml")
    parser.add_argument("--entries", required=True, type=Path, help="results/plan/weights.json")
    parser.add_argument("--out", required=True, type=Path, help="the .safetensors file to write")
    parser.add_argument("--digest", required=True, type=Path, help="digest.json to write")


def run(options: argparse.Namespace) -> None:
    """Prepare the entry."""
    from parbench import files
    from parbench.data import weights

    entry = files.read_record(options.entries, options.name)[options.name]
    weights.prepare(options.name, entry, options.out, options.digest)
