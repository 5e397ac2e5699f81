"""Show what this machine can run, what is missing, what that costs, and how to fix it.

    parbench doctor            # exits with 1 if the quickstart cannot run
    parbench doctor --slurm    # what cells ask Slurm for, for each entry of `hardware`

It also runs on a bare Python: `make doctor`.
"""

import argparse
import sys
from pathlib import Path

from parbench.arguments import add_configfile

ANYWHERE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option that checks Slurm."""
    parser.add_argument(
        "--slurm",
        action="store_true",
        help="show the sbatch line of each entry of hardware, and Slurm's answer; submits nothing",
    )
    add_configfile(parser, "with --slurm: overrides config.yaml")


def run(options: argparse.Namespace) -> int:
    """Print the checks; return 1 if something essential is missing."""
    from parbench.deploy import doctor

    checks = _cluster(options.configfile) if options.slurm else list(doctor.examine())
    print(doctor.table(checks))
    return int(any(check.state == doctor.MISSING and check.essential for check in checks))


def _cluster(configfiles):
    """Return a check of what cells ask this site's Slurm for, for each configured hardware."""
    from parbench.deploy import doctor, host_environment

    check = doctor.slurm()
    if check.state != doctor.OK:
        return [doctor.Check("Slurm", doctor.MISSING, check.found, check.costs, check.fix, True)]
    folder = host_environment.ensure("current")
    if Path(sys.prefix) != folder:
        host_environment.execute(folder, ["python", *sys.argv])
    from parbench.launch import slurm_site

    return list(slurm_site.examine(configfiles))
