"""Make a certificate of equivalence by scripts/equivalence.py, or take it from the cache."""

from parbench.equivalence.certificate import main
from parbench.errors import run_main

if __name__ == "__main__":
    run_main(main)
