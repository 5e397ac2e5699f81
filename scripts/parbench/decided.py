"""Read and write what earlier runs decided about the cells of this project's folder.

results/deployment.json keeps what `deployment: auto` found, so that cells do not change when images
are built. results/restarts.json keeps how many restarts and seeds undecided comparisons have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from parbench.errors import ParbenchError
from parbench.files import read_json, write_json

DEPLOYMENT = Path("results/deployment.json")
RESTARTS = Path("results/restarts.json")


@dataclass(frozen=True)
class Decided:
    """The decisions of earlier runs.

    ``deployment``: apptainer or host, with the ``reason`` for it; None if `auto` has not decided.
    ``restarts``: number of restarts of a pair or seeds of a group, by id, if `parbench decide`
    added some to those of the study.
    """

    deployment: str | None = None
    reason: str = ""
    restarts: Mapping[str, int] = field(default_factory=dict)


def read() -> Decided:
    """Read what was decided. Raises ParbenchError if a file is damaged."""
    found = read_json(DEPLOYMENT) if DEPLOYMENT.exists() else None
    known = isinstance(found, dict) and found.get("deployment") in ("apptainer", "host")
    if found is not None and not known:
        raise ParbenchError(
            f"{DEPLOYMENT}: it names no deployment; delete the file, which will be written again"
        )
    restarts = read_json(RESTARTS) if RESTARTS.exists() else {}
    if not isinstance(restarts, dict) or not all(isinstance(n, int) for n in restarts.values()):
        raise ParbenchError(
            f"{RESTARTS}: expected numbers of restarts by id; delete it and run again"
        )
    if found is None:
        return Decided(restarts=restarts)
    return Decided(found["deployment"], found.get("reason", ""), restarts)


def keep_deployment(deployment: str, reason: str) -> None:
    """Keep what `deployment: auto` found."""
    write_json(DEPLOYMENT, {"deployment": deployment, "reason": reason})


def keep_restarts(counts: Mapping[str, int]) -> None:
    """Keep the numbers of restarts or seeds of these pairs and groups; other entries stay."""
    write_json(RESTARTS, {**read().restarts, **counts})
