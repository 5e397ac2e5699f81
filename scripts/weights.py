"""Fetch, verify and rename one file of published weights."""

from parbench.data.weights import main
from parbench.errors import run_main

if __name__ == "__main__":
    run_main(main)
