"""Paths in a project's folder."""

from __future__ import annotations

from pathlib import Path

from parbench.errors import ParbenchError

ROOT = Path(__file__).resolve().parents[3]
RESULTS = Path("results")  # the workflow runs in the project's folder
PUBLISHED = Path("studies/published")
CLAIMS = PUBLISHED / "claims.yaml"


def require_root(program: str) -> None:
    """Raise ParbenchError unless this is the project's folder, whose results ``program`` needs.

    A checkout is a work folder: results belong to its studies and scripts.
    """
    if Path.cwd().resolve() != ROOT:
        raise ParbenchError(
            f"run {program} in the project's folder {ROOT} (this is {Path.cwd()}); a second "
            "checkout is a second work folder"
        )


def folder(cell: str) -> Path:
    """Return the folder of the cell with this id."""
    return RESULTS / "cells" / cell


def shown(path: str | Path) -> str:
    """Return ``path`` as a user types it: relative to the project's folder if inside it."""
    path = Path(path)
    return (
        str(path.relative_to(ROOT))
        if path.is_absolute() and path.is_relative_to(ROOT)
        else str(path)
    )


def published_files() -> list[Path]:
    """Return the files of published values; each source is in one of them."""
    return sorted(PUBLISHED.glob("*.csv"))
