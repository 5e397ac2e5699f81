"""Take turns with the other sides of a pair: cell.json in, a line a turn out."""

from parbench.errors import run_main
from parbench.training.turns import main

if __name__ == "__main__":
    run_main(main)
