"""Certificates of equivalence: what scripts/equivalence.py writes, and what one says of a cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import files
from errors import ParbenchError

SCHEMA_VERSION = 1
FOLDER = Path("results/certificates")
HOST = "host"  # in place of an image's label
EQUAL, DIFFERS, MEASURED = "equal", "differs", "measured"
# Arithmetics in which each precision of a cell is certified, beside float64.
ALSO_IN = {"fp32": "float32", "bf16": "bfloat16"}


def path(place: str) -> Path:
    """The certificate of what runs in the image with this label, or on the HOST."""
    return FOLDER / f"{place}.json"


def combination(cell: Mapping) -> dict[str, Any]:
    """What of a cell decides whether its mathematics is certified, beside its arithmetic.

    The model by its name alone: it is certified at small width.
    """
    hardware = cell["hardware"]
    return {
        "model": cell["model"]["name"],
        "strategy": cell["strategy"]["name"],
        "options": cell["strategy"]["options"],
        "devices": hardware["devices"] * hardware["nodes"],
    }


def write(out: Path, place: str, environment: dict, rows: list[dict]) -> dict:
    """Write a certificate, with its digest, and return it."""
    made = {"schema_version": SCHEMA_VERSION, "place": place, "environment": environment}
    made["rows"] = rows
    made["digest"] = files.digest(made)
    files.write_json(out, made)
    return made


def read(source: Path) -> dict:
    """Read a certificate; ParbenchError for what is none or was changed."""
    found = files.read_json(source)
    fix = "delete it and run again"
    if not isinstance(found, dict) or found.get("schema_version") != SCHEMA_VERSION:
        raise ParbenchError(f"{source}: not a certificate of this version; {fix}")
    content = {key: value for key, value in found.items() if key != "digest"}
    if found.get("digest") != files.digest(content):
        raise ParbenchError(f"{source}: its digest is another; it was changed or damaged; {fix}")
    return found


class Certificates:
    """The certificates of a study's images."""

    def __init__(self, paths: Iterable[Path]):
        self.all = {found["place"]: found for found in map(read, paths)}

    def digest(self, run: Mapping) -> str | None:
        """The digest of the certificate that stands for a run (metrics.json), or None."""
        found = self.all.get(run["environment"]["image"] or HOST)
        return found and found["digest"]

    def problem(self, run: Mapping) -> str | None:
        """Why the mathematics of a run (metrics.json) is not certified; None where it is."""
        cell, place = run["cell"], run["environment"]["image"] or HOST
        training = cell["training"]
        if place not in self.all:
            return f"not certified: nothing of {place} is"
        if training["precision"] not in ALSO_IN:
            return f"not certified: precision {training['precision']} is not"
        wanted = combination(cell)
        rows = [row for row in self.all[place]["rows"] if wanted.items() <= row.items()]
        if not rows:
            return "not certified: this combination of model, strategy, options and devices is not"
        if any(row["code"] != run["environment"]["code_digest"] for row in rows):
            return "not certified: its code is another"
        needed = {("float64", "frozen"), (ALSO_IN[training["precision"]], "frozen")}
        if training["batch_norm"] == "synchronized":
            # There where the model has BatchNorm, and more than one rank.
            needed |= {
                (r["arithmetic"], r["batch_norm"])
                for r in rows
                if r["batch_norm"] == "synchronized"
            }
        found = {(row["arithmetic"], row["batch_norm"]) for row in rows}
        if needed - found:
            return f"not certified: {', '.join(sorted(name for name, _ in needed - found))} is not"
        for row in rows:
            if (row["arithmetic"], row["batch_norm"]) in needed and row["verdict"] != EQUAL:
                return f"not certified: {said(row)}"
        return None


def said(row: Mapping) -> str:
    """What a row that is not equal says, in words."""
    where = f"in {row['arithmetic']}, BatchNorm {row['batch_norm']}"
    if row["reason"] is not None:
        return f"{row['reason']} ({where})"
    much = "without bound" if row["error"] is None else f"by {row['error']:.1e}"
    return f"{row['quantity']} differs {much} from eager's, bound {row['bound']:.1e} ({where})"
