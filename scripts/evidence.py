"""Evidence: what a machine measured of a study, in one small file that is kept with the project."""

from parbench.errors import run_main
from parbench.verdicts.evidence import main

if __name__ == "__main__":
    run_main(main)
