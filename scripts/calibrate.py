"""Estimate from A/A pairs measured on a machine how often verdicts err and how long they take."""

from parbench.bench.calibration import main
from parbench.errors import run_main

if __name__ == "__main__":
    run_main(main)
