"""Rebuild published benchmarks of parallel training.

Every program and the Snakefile import this package first. It ends a program with one sentence if
parbench cannot run: on a system other than Linux, on an older Python (which must be able to read
this file, so its syntax is old), and on a Python without the packages.
"""

import platform
import sys

LINUX = "parbench needs Linux, as it locks, pins and measures processor cores; on Windows: WSL 2"

if platform.system() != "Linux":
    sys.exit("error: " + LINUX)
if sys.hexversion < 0x030B0000:
    sys.exit(
        f"error: Python 3.11 or newer is needed, and {sys.executable} is {sys.version.split()[0]}; "
        "`make doctor` looks for another one, or says how to install it"
    )
if sys.flags.optimize > 1:
    sys.exit(
        "error: commands of parbench print their docstrings, which PYTHONOPTIMIZE=2 and python -OO "
        "leave out: unset PYTHONOPTIMIZE, or call python without -OO"
    )

from parbench import outside  # noqa: E402

sys.excepthook = outside.report
