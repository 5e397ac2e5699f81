"""What this machine can run, what each missing thing costs, and the command that mends it.

python3 scripts/doctor.py            # also on a bare Python; status 1: not even the quickstart runs
python3 scripts/doctor.py --slurm    # what a cell on each hardware of config.yaml asks Slurm for
"""

import argparse
import sys
from pathlib import Path

if sys.hexversion < 0x030B0000:  # said before anything that an older Python cannot import
    sys.exit(
        f"Python  missing  {sys.version.split()[0]} ({sys.executable})\n"
        "                 costs: nothing runs: 3.11 or newer is needed\n"
        "                 mend:  sudo apt install python3.11; then: make PYTHON=python3.11 report"
    )
sys.path.insert(0, str(Path(__file__).resolve().parent))  # `python -I` leaves it out

from parbench.deploy import doctor, environment
from parbench.errors import run_main


def cluster(configfiles: list[str]) -> list[doctor.Check]:
    """What cells on each hardware of the configuration ask this site's Slurm for."""
    found = doctor.slurm()
    if found.state != doctor.OK:
        return [doctor.Check("Slurm", doctor.MISSING, found.found, found.costs, found.mend, True)]
    folder = environment.ensure("current")
    if Path(sys.prefix) != folder:
        environment.execute(folder, ["python", *sys.argv])
    from parbench.launch import slurm_site

    return list(slurm_site.examine(configfiles))


def main() -> int:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--slurm",
        action="store_true",
        help="each hardware's sbatch line, and what this site's Slurm makes of it; submits nothing",
    )
    parser.add_argument(
        "--configfile", action="append", default=[], help="with --slurm: laid over config.yaml"
    )
    arguments = parser.parse_args()
    checks = cluster(arguments.configfile) if arguments.slurm else list(doctor.examine())
    print(doctor.table(checks))
    return int(any(each.state == doctor.MISSING and each.essential for each in checks))


if __name__ == "__main__":
    run_main(main)
