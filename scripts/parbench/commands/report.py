"""Run the studies of config.yaml and write the report, reports/final.html and final.pdf.

    parbench report                                 # train what is not done
    parbench report --minutes 9                     # stop then; reports/unfinished.html
    parbench report -n                              # show what would run, and how long it takes
    parbench report --config studies=[laharsh-cpu]  # run other studies
    parbench report --configfile mine.yaml          # override config.yaml
    parbench report --profile slurm                 # run each cell as a Slurm job

First it adds to the environment what the cells need. Then Snakemake trains what is not done and
makes tables and report; it gets all arguments that are not listed below (`snakemake --help`). Then
restarts and seeds are added to undecided comparisons, for at most `budget_minutes` of config.yaml.
Finally it prints a summary of the results.

After an interruption (Ctrl-C), running cells write a checkpoint and end; the same command continues
from there.
"""

import argparse
import os
import sys

from parbench.arguments import duration
from parbench.variables import PROGRAM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the time limit; the rest is Snakemake's."""
    parser.set_defaults(snakemake=())
    parser.allow_abbrev = False  # Snakemake has options of its own that begin alike
    parser.add_argument(
        "--minutes",
        type=duration,
        help="interrupt the run after this many minutes, waiting included, and exit with 1",
    )


def run(options: argparse.Namespace) -> int:
    """Run all steps; return the status of the step that failed, or 0."""
    if options.minutes is not None:
        from parbench.workflow import minutes

        command = [sys.executable, str(PROGRAM), "report", *options.snakemake]
        return minutes.run(command, options.minutes, {"PARBENCH_REPORT_WHEN_STOPPED": "1"})
    from parbench import programs
    from parbench.verdicts import closing
    from parbench.workflow import deciding, preparing

    preparing.prepare(options.snakemake)
    os.environ["PARBENCH_CLOSING"] = (
        "make"  # the summary is printed below, even if Snakemake has nothing to do
    )
    if status := programs.snakemake("reports/final.html", "reports/final.pdf", *options.snakemake):
        return status
    if deciding.decide_for_report(options.snakemake):
        closing.show()
    return 0
