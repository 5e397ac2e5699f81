"""Make a tidy CSV for each study: statistics over seeds, published values, verdicts."""

from parbench.errors import run_main
from parbench.verdicts.tables import main

if __name__ == "__main__":
    run_main(main)
