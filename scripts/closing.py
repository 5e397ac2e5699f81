"""The end of a run, in short: the results of the report's studies, and where the report lies."""

from parbench.errors import run_main
from parbench.reporting.closing import main

if __name__ == "__main__":
    run_main(main)
