"""Write a Workflow Run RO-Crate of a finished run: what ran, its inputs and its results.

    parbench crate --out <name>.zip --agent 'Ada Lovelace'

It needs further packages, which `make env ARGS=crate` or `make crate` adds.
"""

import argparse
import importlib.util
from pathlib import Path

from parbench.arguments import add_config, add_configfile
from parbench.files import user_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the configuration of the run, and what the crate says about it."""
    add_configfile(parser, "as given for the report")
    add_config(parser, "as given for the report")
    parser.add_argument(
        "--out", type=user_path, default=Path("crate"), help="a folder, or <name>.zip"
    )
    parser.add_argument("--agent", help="name of the person who ran it (default: none)")
    parser.add_argument("--license", help="address of the license (default: parbench's)")


def run(options: argparse.Namespace) -> None:
    """Write the crate. Raises ParbenchError if the environment lacks rocrate."""
    from parbench.deploy import host_environment
    from parbench.errors import ParbenchError

    if host_environment.entered() and importlib.util.find_spec("rocrate") is None:
        raise ParbenchError("rocrate is not installed: make env ARGS=crate")
    from parbench.reporting import crate

    crate.write(options.out, options.configfile, options.config, options.agent, options.license)
