"""Say which command replaces a program of parbench 0.1; the names of those that users typed are
links to this file. It goes with parbench 0.3.0."""

import shlex
import sys
from pathlib import Path

RENAMED = {"equivalence": "certify", "environment": "env"}


def main() -> None:
    """Print the line to type instead, and exit with 2."""
    old, words = Path(sys.argv[0]).name, sys.argv[1:]
    name = old.removesuffix(".py")
    if name == "cells":  # the action became the command
        action = next((word for word in words if word in ("why", "command")), "list")
        name = "cells" if action == "list" else action
        words = [word for word in words if word != action]
    else:
        name = RENAMED.get(name, name)
    root = Path(__file__).resolve().parents[1]
    program = ["parbench"]
    if not Path.cwd().is_relative_to(root):  # where `parbench` would find no checkout
        program = ["python", str(root / "scripts" / "bin" / "parbench")]
    print(
        f"error: scripts/{old} is now: {shlex.join([*program, name, *words])}\n"
        '  . "$(make -s env)/bin/activate" puts parbench on the PATH',
        file=sys.stderr,
    )
    sys.exit(2)


if __name__ == "__main__":
    main()
