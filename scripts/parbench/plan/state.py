"""Find out the state of a cell and why it would be trained again, and print both."""

from __future__ import annotations

import contextlib
import fcntl
import functools
from collections import Counter
from pathlib import Path
from typing import Any

from parbench import identity
from parbench.cell import Cell, Pair
from parbench.data import pretrained, saved_weights, source
from parbench.deploy import recipes
from parbench.errors import ParbenchError
from parbench.files import read_json, read_record
from parbench.identity import Identity, MeasuredIn
from parbench.plan import places
from parbench.plan.expansion import Plan
from parbench.plan.places import folder
from parbench.runs import records
from parbench.runs.records import CellRun, PairRun
from parbench.words import nearest


def state(cell_id: str, plan: Plan) -> tuple[str, list[str]]:
    """Return a cell's state in one word and the reasons for it.

    ``done``: it has metrics and nothing they depend on changed; ``stale``: something did;
    ``running``: a run has begun it; ``failed``: its last run gave no metrics; ``missing``: it has
    not run yet, or not to its end; ``not run``: this machine cannot; ``unreadable``: a file that
    decides this is damaged or belongs to another cell.
    """
    if cell_id in plan.not_run:
        return "not run", [plan.not_run[cell_id]]
    cell = plan.cells[cell_id]
    try:
        result = metrics(cell_id)
        if result is None:
            described_data(cell)
            return _without_result(cell_id)
        reasons = current(cell, plan).changes_since(_measured(result))
        reasons += filter(
            None,
            (rebuilt_data(cell, plan), saved_weights.why_missing(cell, folder(cell_id).parent)),
        )
    except ParbenchError as error:
        return "unreadable", [str(error)]
    return ("stale" if reasons else "done"), reasons


def _without_result(cell_id: str) -> tuple[str, list[str]]:
    path = folder(cell_id) / "failed.json"
    if not path.exists():
        return "missing", ["it has not been trained yet"]
    if _is_running(cell_id):
        return "running", ["a run is measuring it, or waits for its devices"]
    failure = read_record(path, "sentence", "log")
    where = f" ({failure['log']})" if failure["log"] else ""
    return "failed", [f"its last run failed: {failure['sentence']}{where}"]


def _is_running(cell_id: str) -> bool:
    """Return whether a launcher holds the cell's lock, as it does until it has a result."""
    with contextlib.suppress(OSError), open(folder(cell_id) / ".lock", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def current(cell: Cell | Pair, plan: Plan) -> Identity:
    """Return the identity that ``cell`` has at present.

    Raises ParbenchError if one of its files is damaged.
    """
    return identity.current(cell, image_labels(cell, plan), data_path(cell).parent)


def _measured(result: CellRun | PairRun) -> Identity:
    weights = None if isinstance(result, PairRun) else result.weights_sha256
    environments: list[MeasuredIn] = [
        {
            "code": each.code,
            "image": each.image,
            "python": each.python,
            "packages": each.packages,
            "dataset_digest": each.dataset_digest,
        }
        for each in result.environments
    ]
    return identity.recorded(result.cell, environments, weights)


def rebuilt_data(cell: Cell | Pair, plan: Plan) -> str | None:
    """Return why the existing dataset of ``cell`` would be made again; None if it would not."""
    name, data = cell.dataset.name, described_data(cell)
    if data is None:
        return None
    if data.get("made_from") not in (None, made_from(name, plan)):
        return f"the dataset {name} will be made again: its entry or its conversion changed"
    if source_digest(name, plan) not in (None, data.get("source_sha256")):
        return f"the files in {plan.datasets[name]['path']} changed (dataset {name})"
    return None


def seconds_of(cell: str) -> float | None:
    """Return the seconds from a cell's start to its end; None if it has no result."""
    try:  # Not validated: there may be thousands of cells.
        result = read_json(folder(cell) / "metrics.json")
        return records.seconds(result["started"], result["finished"])
    except (ParbenchError, KeyError, TypeError, ValueError):
        return None


# --- what a cell depends on ---


def metrics(cell_id: str) -> CellRun | PairRun | None:
    """Return a cell's metrics.json; None if it has none.

    Raises ParbenchError if the file is invalid: a results folder may contain files that were copied
    from elsewhere or edited.
    """
    path = folder(cell_id) / "metrics.json"
    if not path.exists():
        return None
    result = records.read(path)
    if result.cell.id != cell_id:
        raise ParbenchError(
            f"{path}: this is a run of {result.cell.id}; delete the file and run the cell again"
        )
    return result


def data_path(cell: Cell | Pair) -> Path:
    """Return the path of the file that describes the cell's dataset."""
    return places.RESULTS / "data" / cell.dataset.name / "digest.json"


def described_data(cell: Cell | Pair) -> dict[str, Any] | None:
    """Read the description of the cell's converted dataset; None while it does not exist."""
    path = data_path(cell)
    return read_record(path, "sha256") if path.exists() else None


def weights(cell: Cell | Pair) -> list[Path]:
    """Return the paths of the files that describe the weights ``cell`` starts from.

    These are published weights, or those of another cell.
    """
    starts = (side.model.pretrained for side in cell.sides)
    names = dict.fromkeys(start.weights for start in starts if start)
    paths = [places.RESULTS / "weights" / name / pretrained.DIGEST for name in names]
    trainers = (side.trained_by for side in cell.sides)
    return paths + [folder(name) / saved_weights.DIGEST for name in trainers if name is not None]


def missing_weights(cell: Cell | Pair) -> list[Path]:
    """Return the paths in ``weights`` that do not exist."""
    return [path for path in weights(cell) if not path.exists()]


def image_of(cell: Cell, plan: Plan) -> recipes.Image | None:
    """Return the image that ``cell`` runs in; None on the host."""
    if cell.deployment != "apptainer":
        return None
    return recipes.of_cell(cell, plan.images)


def image_labels(cell: Cell | Pair, plan: Plan) -> list[str | None]:
    """Return the label of each side's image, None on the host."""
    found = (image_of(side, plan) for side in cell.sides)
    return [image and image.label for image in found]


@functools.cache
def made_from(name: str, plan: Plan) -> str:
    """Return a digest of all that determines a dataset's bytes, except a local folder's files."""
    return source.made_from(plan.datasets[name])


@functools.cache
def source_digest(name: str, plan: Plan) -> str | None:
    """Return the SHA-256 of a dataset's local folder; None for sources pinned by a digest."""
    if "path" not in plan.datasets[name]:
        return None
    from parbench.data import dataset  # imported late: it needs numpy

    cache_path = places.RESULTS / "plan" / "datasets" / f"{name}.source.json"
    description_path = places.RESULTS / "data" / name / "digest.json"
    return dataset.local_digest(plan.datasets[name], cache_path, description_path)


# --- terminal output ---


def find(name: str, plan: Plan) -> str:
    """Return the id of the cell that ``name`` (an id or a unique part of one) means."""
    if name in plan.cells:
        return name
    matches = [cell for cell in plan.cells if name in cell]
    if name in {path.parent.name for path in (places.RESULTS / "cells").glob("*/metrics.json")}:
        # Its settings changed since, so that it is another cell.
        matches = [cell for cell in plan.cells if _name(cell) == _name(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        listing = "\n  ".join(matches[:10])
        raise ParbenchError(
            f"{name!r} matches {len(matches)} cells; be more specific:\n  {listing}"
        )
    raise ParbenchError(
        f"unknown cell {name!r}{nearest(name, plan.cells, listed=False)} "
        "(`parbench cells` lists them all)"
    )


def _name(cell_id: str) -> str:
    """Return a cell's id without the digest of its settings."""
    return cell_id.rpartition("-")[0]


def show_all(plan: Plan) -> None:
    """Print every cell with its state."""
    width = max(map(len, plan.cells))
    counts: Counter[str] = Counter()
    for cell_id in plan.cells:
        word, reasons = state(cell_id, plan)
        counts[word] += 1
        reason = "" if word in ("done", "missing") else reasons[0]
        print(f"{cell_id:<{width}}  {word:<10} {reason}".rstrip())
    total = ", ".join(f"{count} {word}" for word, count in counts.items())
    print(f"\n{len(plan.cells)} cell{'s' * (len(plan.cells) != 1)}: {total}")


def show_why(cell_id: str, plan: Plan) -> None:
    """Print why a cell would run, and the path of a finished one's metrics.json."""
    word, reasons = state(cell_id, plan)
    print(f"{cell_id}: {word}")
    if word == "done":
        print(
            "It would not run again: its settings, code, software, data and initial weights are "
            "unchanged."
        )
    elif word == "not run":
        print(
            f"It is not run here: {reasons[0]}. On a machine that has what it needs, it runs "
            "automatically."
        )
    elif word == "running":
        print(f"It has no result yet: {reasons[0]}.")
    elif word == "unreadable":
        print(f"Its state cannot be determined: {reasons[0]}")
        return
    else:
        print("It would run because:")
        for reason in reasons:
            print(f"  - {reason}")
    if word in ("failed", "missing"):
        _show_changed(cell_id, plan)
    if result := metrics(cell_id):
        print(f"It ran from {result.started} to {result.finished}, with status {result.status}:")
        print(f"  {folder(cell_id) / 'metrics.json'}")


def _show_changed(cell_id: str, plan: Plan) -> None:
    """Print the finished cells of the same name, and what was edited since."""
    now = identity.settings_of(plan.cells[cell_id].json())
    for path in sorted((places.RESULTS / "cells").glob(f"{_name(cell_id)}-*/metrics.json")):
        with contextlib.suppress(ParbenchError, KeyError, TypeError):  # it belongs to another cell
            # Not read as a record, which would add settings that the file does not have.
            then = identity.settings_of(read_json(path)["cell"])
            print(f"{path.parent.name} is done. Its settings differ:")
            changes = identity.differences(then, now)
            print(*(f"  - {change}" for change in changes), sep="\n")
