"""The command line of scripts/dataset.py and scripts/weights.py."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from parbench import files


def run(prepare: Callable[[str, dict, Path, Path], None], description: str) -> None:
    """Call ``prepare`` with a name, its entry in config.yaml and the two files to write."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--name", required=True, help="the entry's key in config.yaml")
    parser.add_argument("--entries", required=True, type=Path, help="JSON file of all entries")
    parser.add_argument("--out", required=True, type=Path, help="the .safetensors file to write")
    parser.add_argument("--digest", required=True, type=Path, help="digest.json to write")
    arguments = parser.parse_args()
    spec = files.read_record(arguments.entries, arguments.name)[arguments.name]
    prepare(arguments.name, spec, arguments.out, arguments.digest)
