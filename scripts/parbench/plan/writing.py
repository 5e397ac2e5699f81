"""Writes what a run reads of its plan: cell.json of every cell, the plans of studies, and more."""

from __future__ import annotations

import time
from pathlib import Path

from parbench.cell import Cell
from parbench.files import canonical_json, read_json, write_json
from parbench.plan import places
from parbench.plan.expansion import Plan
from parbench.plan.places import folder


def write(plan: Plan) -> None:
    """Write cell.json of every cell and the plan of every study, each only when it changed."""
    for cell_id, cell in plan.cells.items():
        if cell_id not in plan.not_run:
            write_cell(cell)
    home = places.RESULTS / "plan"
    for name, content in plan.studies.items():
        _write_changed(home / f"{name}.json", content)
    _write_changed(home / "datasets" / "specs.json", plan.datasets)
    _write_changed(home / "weights.json", plan.weights)
    _write_changed(home / "images.json", plan.images)


def write_cell(cell: Cell) -> None:
    """Write a cell's cell.json, if it changed."""
    _write_changed(folder(cell.id) / "cell.json", cell.json())


def _write_changed(path: Path, value: dict) -> None:
    if not path.exists() or canonical_json(read_json(path)) != canonical_json(value):
        write_json(path, value)


def launch_paths(cell: Cell) -> dict[str, Path]:
    """The files of a cell, as scripts/launch.py takes them."""
    home = folder(cell.id)
    return {
        "cell_path": home / "cell.json",
        "data": places.RESULTS / "data" / cell.dataset.name,
        "out": home / "metrics.json",
    }


def progress_entries(plan: Plan) -> dict[str, dict]:
    """Of every cell of the plan: what it runs on (cores or GPUs), and which group's cells take as
    long as it."""
    entries = {}
    for study in plan.plans.values():
        for group in study.groups:
            hardware = group.hardware
            entry = {
                "device": hardware.device,
                "devices": hardware.devices * hardware.threads * hardware.nodes,
                "like": group.id,
            }
            entries.update(dict.fromkeys(group.cells, entry))
    return entries


def write_progress(plan: Plan, cells: list[str], slots: dict[str, int]) -> None:
    """Tell the launcher which ``cells`` this run will train, for its count and time left.

    ``slots``: devices of each kind, cores or GPUs.
    """
    entries = progress_entries(plan)
    chosen = {cell: entries[cell] for cell in cells}
    told = {"started": time.time(), "cells": chosen, "slots": slots}
    write_json(places.RESULTS / "plan" / "progress.json", told)
