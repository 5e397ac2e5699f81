"""Train one cell: cell.json in, metrics.json out. The only training loop."""

from parbench.errors import run_main
from parbench.training.train import main

if __name__ == "__main__":
    run_main(main)
