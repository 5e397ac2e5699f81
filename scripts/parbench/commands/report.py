"""Run the studies of config.yaml, decide what is open, and write reports/final.html and final.pdf.

    parbench report                                 # trains what is not done
    parbench report --minutes 9                     # reports/unfinished.html: what is done then
    parbench report -n                              # what would run, and what it would take
    parbench report --config studies=[laharsh-cpu]  # other studies, for this run
    parbench report --configfile mine.yaml          # laid over config.yaml
    parbench report --profile slurm                 # each cell a job of Slurm

First it adds to the environment what the cells need. Then Snakemake trains what is not done and
makes tables and report; all words that are not options below are for it (`snakemake --help`). Then
restarts and seeds are added for at most `budget_minutes` of config.yaml, where comparisons are
undecided. It ends with the results of the studies in short.

Interrupted (Ctrl-C), it goes on from there when it is started again: running cells write a
checkpoint and end.
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
        help="interrupt the run after so many, waiting included; status 1 if that was needed",
    )


def run(options: argparse.Namespace) -> int:
    """Run it all; return the status of the step that failed, or 0."""
    if options.minutes is not None:
        from parbench.workflow import minutes

        command = [sys.executable, str(PROGRAM), "report", *options.snakemake]
        return minutes.run(command, options.minutes, {"PARBENCH_REPORT_WHEN_STOPPED": "1"})
    from parbench import programs
    from parbench.verdicts import closing
    from parbench.workflow import deciding, preparing

    preparing.prepare(options.snakemake)
    os.environ["PARBENCH_CLOSING"] = "make"  # printed below, also if Snakemake has nothing to do
    if status := programs.snakemake("reports/final.html", "reports/final.pdf", *options.snakemake):
        return status
    deciding.decide_for_report(options.snakemake)
    closing.show()
    return 0
