"""A Workflow Run RO-Crate of a finished run: what was run, with what, and what came of it."""

import importlib.util

from parbench.errors import ParbenchError, run_main


def main() -> None:
    """Tell where the library is missing, which only crates need."""
    if importlib.util.find_spec("rocrate") is None:
        raise ParbenchError("rocrate is not installed: python scripts/environment.py ensure")
    from parbench.reporting import crate

    crate.main()


if __name__ == "__main__":
    run_main(main)
