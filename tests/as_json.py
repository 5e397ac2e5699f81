"""Contents of metrics.json for tests: checked by its model, returned as JSON."""

from __future__ import annotations

from pathlib import Path

from parbench import files
from parbench.runs import records


def read(path: Path) -> dict:
    """Return the content of metrics.json; ParbenchError if it is none."""
    records.read(path)
    return files.read_json(path)
