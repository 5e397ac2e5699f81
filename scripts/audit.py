"""Find contradictions between published numbers, and between them and their source's claims."""

from parbench.errors import run_main
from parbench.verdicts.audit import main

if __name__ == "__main__":
    run_main(main)
