"""Write a plan's files (every cell's cell.json, the plans of studies, and more), and read them back
for the job of one cell."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from parbench import cell as cells
from parbench.deploy import containers
from parbench.files import json_text, write_atomically
from parbench.models.libraries import file as model_files
from parbench.plan import places
from parbench.plan.configuration import Config
from parbench.plan.expansion import Plan
from parbench.plan.places import folder

FOLDER = places.RESULTS / "plan"


def content(plan: Plan) -> dict[Path, object]:
    """Return the contents of the plan files that Snakemake rules use as inputs, by path: one per
    study, and those shared by all."""
    studies = {f"{name}.json": study.stated() for name, study in plan.studies.items()}
    shared = {
        "datasets/specs.json": plan.datasets,
        "weights.json": plan.weights,
        "images.json": containers.planned(plan.stack, plan.images),
    }
    return {FOLDER / name: value for name, value in {**studies, **shared}.items()}


def write(plan: Plan) -> None:
    """Write every cell's cell.json and every study's plan, each only if it changed."""
    for cell_id, cell in plan.cells.items():
        if cell_id not in plan.not_run:
            _write_changed(folder(cell_id) / "cell.json", cell.json())
    model_files.keep()
    for path, value in content(plan).items():
        _write_changed(path, value)


def plan_of(cell_id: str, config: Config) -> Plan:
    """Return a plan of ``config`` with only this cell, as ``write`` wrote it, and no studies."""
    cell = cells.read(folder(cell_id) / "cell.json")
    return replace(Plan.without_cells(config), cells={cell_id: cell})


def is_written(path: Path, value: object) -> bool:
    """Return whether the file contains ``value`` as JSON."""
    return path.is_file() and path.read_bytes() == json_text(value).encode()


def _write_changed(path: Path, value: object) -> None:
    if not is_written(path, value):
        write_atomically(path, json_text(value))


def write_progress(cells: list[str]) -> None:
    """Write which ``cells`` this run will train, for the launchers' count and time left."""
    progress = {"started": time.time(), "cells": cells}
    _write_changed(FOLDER / "progress.json", progress)
