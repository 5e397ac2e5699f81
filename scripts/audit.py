"""What published numbers say against themselves, and against what their source says in words:"""

from parbench.errors import run_main
from parbench.verdicts.audit import main

if __name__ == "__main__":
    run_main(main)
