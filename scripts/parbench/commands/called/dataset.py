"""Download, verify and convert one dataset."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the entry of config.yaml and the files to write."""
    parser.add_argument("--name", required=True, help="the entry's key in config.yaml")
    parser.add_argument(
        "--entries", required=True, type=Path, help="results/plan/datasets/specs.json"
    )
    parser.add_argument("--out", required=True, type=Path, help="the .safetensors file to write")
    parser.add_argument("--digest", required=True, type=Path, help="digest.json to write")


def run(options: argparse.Namespace) -> None:
    """Prepare the entry."""
    from parbench import files
    from parbench.data import dataset

    entry = files.read_record(options.entries, options.name)[options.name]
    dataset.prepare(options.name, entry, options.out, options.digest)
