"""Write a plan's files (every cell's cell.json, the plans of studies, and more), and read them back
for the job of one cell."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from parbench import cell as cells
from parbench.deploy import containers
from parbench.files import json_text, write_atomically
from parbench.models.libraries import file as model_files
from parbench.plan import places
from parbench.plan.configuration import Config
from parbench.plan.expansion import Plan
from parbench.plan.places import folder


def write(plan: Plan) -> None:
    """Write every cell's cell.json and every study's plan, each only if it changed."""
    for cell_id, cell in plan.cells.items():
        if cell_id not in plan.not_run:
            _write_changed(folder(cell_id) / "cell.json", cell.json())
    model_files.keep()
    plan_folder = places.RESULTS / "plan"
    for name, study in plan.studies.items():
        _write_changed(plan_folder / f"{name}.json", study.stated())
    _write_changed(plan_folder / "datasets" / "specs.json", plan.datasets)
    _write_changed(plan_folder / "weights.json", plan.weights)
    _write_changed(plan_folder / "images.json", containers.planned(plan.stack, plan.images))


def plan_of(cell_id: str, config: Config) -> Plan:
    """Return a plan of ``config`` with only this cell, as ``write`` wrote it, and no studies."""
    cell = cells.read(folder(cell_id) / "cell.json")
    return replace(Plan.without_cells(config), cells={cell_id: cell})


def _write_changed(path: Path, value: dict[str, Any]) -> None:
    """Write ``value`` as JSON, unless the file already contains it."""
    text = json_text(value)
    if not path.exists() or path.read_bytes() != text.encode():
        write_atomically(path, text)


def write_progress(cells: list[str]) -> None:
    """Write which ``cells`` this run will train, for the launchers' count and time left."""
    progress = {"started": time.time(), "cells": cells}
    _write_changed(places.RESULTS / "plan" / "progress.json", progress)
