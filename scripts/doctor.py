"""Check what this machine can run, what each missing thing costs, and the command that mends it.

python3 scripts/doctor.py            # also on a bare Python; status 1: the quickstart cannot run
python3 scripts/doctor.py --slurm    # what cells ask Slurm for, for each hardware of config.yaml
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # `python -I` leaves it out

from parbench.deploy import doctor, host_environment
from parbench.errors import run_main
from parbench.files import user_path


def cluster(configfiles: list[Path]) -> list[doctor.Check]:
    """Return a check of what cells ask this site's Slurm for, for each configured hardware."""
    check = doctor.slurm()
    if check.state != doctor.OK:
        return [doctor.Check("Slurm", doctor.MISSING, check.found, check.costs, check.fix, True)]
    folder = host_environment.ensure("current")
    if Path(sys.prefix) != folder:
        host_environment.execute(folder, ["python", *sys.argv])
    from parbench.launch import slurm_site

    return list(slurm_site.examine(configfiles))


def main() -> int:
    """Print the checks; return 1 if something essential is missing."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--slurm",
        action="store_true",
        help="each hardware's sbatch line, and what this site's Slurm makes of it; submits nothing",
    )
    parser.add_argument(
        "--configfile",
        type=user_path,
        action="append",
        default=[],
        help="with --slurm: laid over config.yaml",
    )
    arguments = parser.parse_args()
    checks = cluster(arguments.configfile) if arguments.slurm else list(doctor.examine())
    print(doctor.table(checks))
    return int(any(check.state == doctor.MISSING and check.essential for check in checks))


if __name__ == "__main__":
    run_main(main)
