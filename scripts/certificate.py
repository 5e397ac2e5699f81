"""Certificates of equivalence: what scripts/equivalence.py writes, and what one says of a cell."""

from parbench.errors import run_main
from parbench.verdicts.certificate import main

if __name__ == "__main__":
    run_main(main)
