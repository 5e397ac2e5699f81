"""Paths in a project's folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from parbench.errors import ParbenchError

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "config.yaml"
RESULTS = Path("results")  # the workflow runs in the project's folder
STUDIES = Path("studies")
PUBLISHED = STUDIES / "published"
CLAIMS = PUBLISHED / "claims.yaml"
_outside: list[Path] = []  # folders of the studies that the configuration names by path


def require_root(program: str) -> None:
    """Raise ParbenchError unless this is the project's folder, whose results ``program`` needs.

    A checkout keeps its own results: they belong to its studies and scripts.
    """
    if Path.cwd().resolve() != ROOT:
        raise ParbenchError(
            f"run {program} in the project's folder {ROOT} (this is {Path.cwd()}); a second "
            "checkout keeps results of its own"
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


def look_in(folders: Iterable[Path]) -> None:
    """Search for studies, published values and claims also in ``folders``, laid out as studies/."""
    _outside[:] = dict.fromkeys(folders)


def study(name: str) -> Path:
    """Return the file of a study, whether it exists or not."""
    paths = [folder / f"{name}.yaml" for folder in (ROOT / STUDIES, *_outside)]
    return next((path for path in paths if path.exists()), paths[0])


def studies() -> list[str]:
    """Return the names of all studies."""
    folders = (ROOT / STUDIES, *_outside)
    return sorted({path.stem for folder in folders for path in folder.glob("*.yaml")})


def published_files() -> list[Path]:
    """Return the files of published values; each source is in one of them."""
    folders = (PUBLISHED, *(folder / "published" for folder in _outside))
    return [path for folder in folders for path in sorted(folder.glob("*.csv"))]


def claims_files() -> list[Path]:
    """Return the files of claims."""
    files = (folder / "published" / "claims.yaml" for folder in _outside)
    return [CLAIMS, *filter(Path.exists, files)]
