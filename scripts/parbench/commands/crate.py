"""Write a Workflow Run RO-Crate of a finished run: what was run, its inputs and results.

    parbench crate --out <name>.zip --agent 'Ada Lovelace'

It needs packages of its own: `make env ARGS=crate` adds them, and so does `make crate`.
"""

import argparse
import importlib.util
from pathlib import Path

from parbench.files import user_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the configuration of the run, and what the crate says of it."""
    parser.add_argument(
        "--configfile", type=user_path, nargs="+", default=[], help="as of the report"
    )
    parser.add_argument("--config", nargs="+", default=[], help="key=value, as of the report")
    parser.add_argument(
        "--out", type=user_path, default=Path("crate"), help="a folder, or <name>.zip"
    )
    parser.add_argument("--agent", help="the name of who ran it; by default nobody is named")
    parser.add_argument("--license", help="its address; by default parbench's own")


def run(options: argparse.Namespace) -> None:
    """Write the crate. Raises ParbenchError if the environment lacks rocrate."""
    from parbench.deploy import host_environment
    from parbench.errors import ParbenchError

    if host_environment.entered() and importlib.util.find_spec("rocrate") is None:
        raise ParbenchError("rocrate is not installed: make env ARGS=crate")
    from parbench.reporting import crate

    crate.write(options.out, options.configfile, options.config, options.agent, options.license)
