"""Find contradictions between published numbers, and between them and their source's claims."""

from parbench.audit.checks import main
from parbench.errors import run_main

if __name__ == "__main__":
    run_main(main)
