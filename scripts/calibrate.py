"""How often verdicts err, and how long they take, by the A/A pairs that a machine measured."""

from parbench.bench.calibration import main
from parbench.errors import run_main

if __name__ == "__main__":
    run_main(main)
