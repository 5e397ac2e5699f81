"""Download, verify and convert one dataset: an entry of config.yaml's ``datasets`` table in,"""

from parbench.data.dataset import main
from parbench.errors import run_main

if __name__ == "__main__":
    run_main(main)
