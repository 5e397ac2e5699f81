"""Measure pairs again and again until what they compare is decided, or the minutes are over."""

from parbench.errors import run_main
from parbench.verdicts.deciding import main

if __name__ == "__main__":
    run_main(main)
