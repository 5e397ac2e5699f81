"""Compare two training programs in turns: which is faster, and by how much.

    parbench versus --a 'python a.py' --b 'python b.py' --minutes 5

Each program needs `from parbench_turns import step`, and `step(samples=...)` after each training
step (docs/versus.md). The result is a page in the folder of --out. The programs run in the current
folder, with this shell's environment variables.
"""

import argparse
import math
from pathlib import Path

from parbench.files import user_path

ANYWHERE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two programs and how they are compared."""
    parser.add_argument("--a", metavar="COMMAND", help="the first command, as typed")
    parser.add_argument("--b", metavar="COMMAND", help="the second command")
    parser.add_argument("--minutes", type=float, default=5, help="time limit (5)")
    parser.add_argument("--label", nargs=2, metavar=("A", "B"), help="what to call them")
    parser.add_argument("--cores", metavar="0,1", help="cores for both (default: all)")
    parser.add_argument(
        "--env", action="append", metavar="NAME=VALUE", help="a variable for both; repeatable"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=600,
        help="seconds that a first step, or a turn, may take (600)",
    )
    parser.add_argument("--out", type=user_path, help="folder (results/versus/<date and time>)")
    parser.add_argument(
        "--continue",
        type=user_path,
        dest="earlier",
        metavar="FOLDER",
        help="add restarts to the comparison in this folder, instead of --a and --b",
    )


def run(options: argparse.Namespace) -> None:
    """Compare them."""
    from parbench.errors import ParbenchError
    from parbench.versus import comparing, record

    for name in ("minutes", "patience"):
        if not 0 < getattr(options, name) < math.inf:
            raise ParbenchError(f"--{name} {getattr(options, name)}: must be more than 0")
    if options.earlier is not None:
        for key in ("a", "b", "label", "cores", "env", "out"):
            if getattr(options, key) is not None:
                path = Path(options.earlier, record.NAME)
                raise ParbenchError(f"--{key}: {path} says it; leave it out")
        comparison = comparing.continued_request(options.earlier)
    elif None in (options.a, options.b):
        raise ParbenchError("give the two commands, --a and --b, or --continue FOLDER")
    else:
        comparison = comparing.new_request(
            (options.a, options.b),
            options.label or ("A", "B"),
            options.env or [],
            options.cores,
            options.out,
        )
    continues = options.earlier is not None
    comparing.run(comparison, options.minutes, options.patience, continues=continues)
