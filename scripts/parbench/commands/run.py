"""Measure and certify the cells of config.yaml's studies, without tables and report.

    parbench run --minutes 9             # on a machine that only measures
    parbench run --profile slurm         # run each cell as a Slurm job

It takes the options and the arguments for Snakemake of `parbench report`. `parbench evidence write`
saves what was measured, for a report on another machine.
"""

import argparse
import os
import sys

from parbench.commands import report
from parbench.variables import PROGRAM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `parbench report`."""
    report.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Measure; return Snakemake's status."""
    if options.minutes is not None:
        from parbench.workflow import minutes

        command = [sys.executable, str(PROGRAM), "run", *options.snakemake]
        return minutes.run(command, options.minutes)
    from parbench import programs
    from parbench.workflow import preparing

    preparing.prepare(options.snakemake)
    os.environ["PARBENCH_CLOSING"] = "make"  # no summary, since there is no report
    return programs.snakemake("measure", *options.snakemake)
