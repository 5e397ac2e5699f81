"""Add restarts and seeds until all comparisons are decided or the minutes are used up."""

from parbench.errors import run_main
from parbench.verdicts.deciding import main

if __name__ == "__main__":
    run_main(main)
