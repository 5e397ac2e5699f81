"""Fetch, verify and rename one file of published weights."""

from parbench.data import command, weights
from parbench.errors import run_main

if __name__ == "__main__":
    run_main(lambda: command.run(weights.prepare, __doc__))
