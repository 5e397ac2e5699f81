"""Train one cell: lock its devices, start and watch its ranks, keep its result."""

from parbench.errors import run_main
from parbench.launch.launcher import main

if __name__ == "__main__":
    run_main(main)
