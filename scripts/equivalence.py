"""Prove that strategies compute the same thing: each against eager training, on one batch."""

from parbench.equivalence.certify import main
from parbench.errors import run_main

if __name__ == "__main__":
    run_main(main)
