"""Read the files of `--configfile` first: Snakemake's error for broken YAML names no file."""

from __future__ import annotations

import argparse

from parbench.errors import run_main
from parbench.plan.yaml_file import read_yaml


def main() -> None:
    """Read the files named by ``--configfile`` in Snakemake's command line; ignore the rest."""
    # No abbreviations: `--config` is another option.
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--configfile", "--configfiles", nargs="+", default=[])
    for file in parser.parse_known_args()[0].configfile:
        read_yaml(file)


if __name__ == "__main__":
    run_main(main)
