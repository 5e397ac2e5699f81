"""Train one cell: lend it devices, watch its processes, leave none behind, keep its result."""

from parbench.errors import run_main
from parbench.launch.launcher import main

if __name__ == "__main__":
    run_main(main)
