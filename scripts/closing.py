"""Print the summary of a run: the results of the report's studies, and the report's files."""

from parbench.errors import run_main
from parbench.verdicts.closing import main

if __name__ == "__main__":
    run_main(main)
