"""Compare two machines: what two files of evidence say of the same cells."""

from parbench.errors import run_main
from parbench.verdicts.compare import main

if __name__ == "__main__":
    run_main(main)
