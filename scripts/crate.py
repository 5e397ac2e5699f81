"""Write a Workflow Run RO-Crate of a finished run: what was run, its inputs and results."""

import importlib.util

from parbench.deploy import host_environment
from parbench.errors import ParbenchError, run_main


def main() -> None:
    """Write the crate. Raises ParbenchError if the environment lacks rocrate."""
    if host_environment.entered() and importlib.util.find_spec("rocrate") is None:
        raise ParbenchError("rocrate is not installed: make env ARGS=crate")
    from parbench.reporting import crate

    crate.main()


if __name__ == "__main__":
    run_main(main)
