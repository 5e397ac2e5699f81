"""Prove that strategies compute the same thing: each against eager training, on one batch."""

from parbench.errors import run_main
from parbench.verdicts.equivalence import main

if __name__ == "__main__":
    run_main(main)
