"""Download, verify and convert one dataset."""

from parbench.data import command, dataset
from parbench.errors import run_main

if __name__ == "__main__":
    run_main(lambda: command.run(dataset.prepare, __doc__))
