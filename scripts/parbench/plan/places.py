"""Where things lie in a project's folder."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RESULTS = Path("results")  # the workflow runs in the project's folder
PUBLISHED = Path("studies/published")
CLAIMS = PUBLISHED / "claims.yaml"


def folder(cell: str) -> Path:
    """Where the files of the cell with this id lie."""
    return RESULTS / "cells" / cell


def shown(path: str | Path) -> str:
    """``path`` as a user types it: from the project's folder where it lies there."""
    path = Path(path)
    return (
        str(path.relative_to(ROOT))
        if path.is_absolute() and path.is_relative_to(ROOT)
        else str(path)
    )


def published_files() -> list[Path]:
    """The files of published values; each source stands in one of them."""
    return sorted(PUBLISHED.glob("*.csv"))
