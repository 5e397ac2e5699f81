"""Write or unpack evidence: what a machine measured of a study, in one small file to keep."""

from parbench.errors import run_main
from parbench.verdicts.evidence import main

if __name__ == "__main__":
    run_main(main)
