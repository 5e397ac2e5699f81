"""Train one cell, or predict with it, as one of its ranks: cell.json in, metrics.json out."""

from parbench.errors import run_main
from parbench.training.train import main

if __name__ == "__main__":
    run_main(main, tracebacks=True)
