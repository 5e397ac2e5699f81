"""Run one side of a pair, in turn with the others: cell.json in, one line per turn out."""

from parbench.errors import run_main
from parbench.training.pair_rank import main

if __name__ == "__main__":
    run_main(main, tracebacks=True)
