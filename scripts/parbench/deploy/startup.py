"""Prepare Snakemake's process before it imports anything.

This file is copied into the host's environment, where Python runs it at startup: Snakemake loads
its plugins and makes a folder in the user's cache before it reads a file of parbench. Standard
library only.
"""

import os
import sys


def leave_foreign_packages() -> None:
    """Remove folders on PYTHONPATH from the module path, except those below the working folder."""
    folders = filter(None, os.environ.pop("PYTHONPATH", "").split(os.pathsep))
    here = os.path.join(os.getcwd(), "")
    own, foreign = [], []
    for folder in map(os.path.abspath, folders):
        (own if os.path.join(folder, "").startswith(here) else foreign).append(folder)
    if own:
        os.environ["PYTHONPATH"] = os.pathsep.join(own)
    if foreign:
        sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) not in foreign]
        print_message("PYTHONPATH is ignored: its packages are not those of this environment")


def find_cache() -> None:
    """Give Snakemake a cache below the working folder if it cannot write into the user's."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    tried = os.path.join(base, "snakemake", f".parbench-{os.getpid()}")
    try:
        os.makedirs(tried)
        os.rmdir(tried)
    except OSError as error:
        os.environ.setdefault("PARBENCH_CACHE", os.path.join(base, "parbench"))
        os.environ["XDG_CACHE_HOME"] = os.path.abspath(os.path.join(".snakemake", "cache"))
        print_message(
            f"{os.path.dirname(tried)} cannot be written ({error.strerror}): Snakemake's cache is "
            f"{os.environ['XDG_CACHE_HOME']}; set XDG_CACHE_HOME to choose another folder"
        )


def print_message(text: str) -> None:
    """Print a message on standard error."""
    print(f"parbench: {text}", file=sys.stderr, flush=True)


# `snakemake`, also by its path, or `python -m snakemake`.
if "snakemake" in {os.path.basename(word) for word in sys.orig_argv[1:4]}:
    leave_foreign_packages()
    find_cache()
