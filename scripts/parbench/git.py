"""Ask git about a checkout. Standard library only."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TypedDict

from parbench import variables
from parbench.errors import ParbenchError


class GitState(TypedDict):
    """The commit of a checkout, and whether it has uncommitted changes; None if unknown."""

    git_commit: str | None
    git_dirty: bool | None


def run(folder: Path, *words: str) -> str:
    """Return git's output for the checkout ``folder``.

    Raises ParbenchError without git, and if ``folder`` is not a checkout. A repository around it,
    such as one of a home folder, does not count.
    """
    folder = folder.resolve()
    # The owner of the folder does not matter: the caller already runs the code in it.
    command = ["git", "-c", f"safe.directory={folder}", "-C", str(folder), *words]
    environment = variables.clean() | {
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
        "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C",
    }
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise ParbenchError(
            f"git is needed and cannot be started ({error.strerror}); install the package git"
        ) from None
    if done.returncode == 0:
        return done.stdout.rstrip("\n")
    if "not a git repository" in done.stderr:
        raise ParbenchError(
            f"{folder} is not a git clone (an archive of the sources is not one either), and this "
            "needs a commit: use `git clone`"
        )
    if "dubious ownership" in done.stderr:
        raise ParbenchError(
            f"{folder}: git trusts no checkout of another user; type: git config --global --add "
            f"safe.directory {folder}"
        )
    lines = done.stderr.strip().splitlines() or ["no reason given"]
    reason = " / ".join(line.removeprefix("fatal: ") for line in lines[-3:])
    raise ParbenchError(f"git {words[0]} in {folder}: {reason}")


def state(folder: Path) -> GitState:
    """Return {"git_commit", "git_dirty"} of the checkout ``folder``; both None without git.

    Changes in reports/evidence do not make it dirty: they do not affect measurements.
    """
    try:
        commit = run(folder, "rev-parse", "HEAD")
        pathspecs = (":(top)", ":(top,exclude)reports/evidence")
        dirty = bool(run(folder, "status", "--porcelain", "--", *pathspecs))
    except ParbenchError:
        return {"git_commit": None, "git_dirty": None}
    return {"git_commit": commit, "git_dirty": dirty}
