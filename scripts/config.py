"""Checks the files of `--configfile` before Snakemake opens them: its own message is a traceback.

It takes Snakemake's arguments and ignores all others. With `--schemas` it writes those of
rules/schemas/ that come from the models in parbench/plan.
"""

from __future__ import annotations

import argparse
import itertools

from parbench.errors import ParbenchError, run_main


def main() -> None:
    """The command line."""
    # No abbreviations: --config is another option. No help: that is Snakemake's to give.
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--configfile", "--configfiles", nargs="+", action="append", default=[])
    parser.add_argument("--schemas", action="store_true")
    arguments = parser.parse_known_args()[0]
    given = arguments.configfile
    if len(given) > 1:
        names = " ".join(itertools.chain(*given))
        raise ParbenchError(
            "--configfile stands twice, and Snakemake reads the last one's files alone; name all "
            f"after one: --configfile {names}; with make gpu-evidence, say ARGS=<file>"
        )
    if given:
        from parbench.plan.yaml_file import read_yaml

        for file in itertools.chain(*given):
            read_yaml(file)
    if arguments.schemas:
        from parbench.plan import schemas

        schemas.write()


if __name__ == "__main__":
    run_main(main)
