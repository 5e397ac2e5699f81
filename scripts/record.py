"""What a run of a cell leaves beside metrics.json, for the run after it and for its user.

- ``failed.json``: why the last run gave no result, and whether its job goes on (``stopped``); gone
  when the cell starts again,
- ``stopped.json``: where a run that was asked to end has stopped, with a checkpoint kept,
- ``finished.json``: the result once more, which a workflow that was killed meanwhile finds there
  when it is started again: Snakemake deletes metrics.json before it runs a job.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import claim
import measure
import provenance
from errors import ParbenchError
from files import read_json, write_json
from printable import printable
from remaining import duration

CHECKPOINTS = "checkpoints"
LINES, MOST_BYTES = 15, 65536


def failed(folder: Path, sentence: str, log: Path, number: int | None, again: bool = False) -> None:
    """Leave the reason, where it can be written. ``again``: the job ``number`` is to go on."""
    value = {"sentence": sentence, "log": str(log), "job": number, "lines": _last_lines(log)}
    value["stopped"] = again
    with contextlib.suppress(OSError):
        write_json(folder / "failed.json", value)


def _last_lines(log: Path) -> list[str]:
    """The end of a log, which may be long."""
    with contextlib.suppress(OSError), open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_BYTES))
        return file.read(MOST_BYTES).decode(errors="replace").splitlines()[-LINES:]
    return []


def started(folder: Path) -> None:
    """Forget the last run's failure."""
    (folder / "failed.json").unlink(missing_ok=True)


def stopped(folder: Path, where: dict | None, seconds: float) -> str:
    """Note where a run stopped (None: nowhere in training) and how long it took until there.

    Returns what is kept, in words.
    """
    if where is not None:
        before = spent(folder)
        write_json(folder / "stopped.json", {**where, "seconds": round(before + seconds, 3)})
        return (
            f"a checkpoint at epoch {where['epoch']} step {where['step']} is kept, and the same "
            "command goes on from there"
        )
    if any((folder / CHECKPOINTS).glob("*")):
        return "its last checkpoint is kept, and the same command goes on from there"
    return "before its first checkpoint; the same command starts it anew"


def checkpoints(folder: Path) -> set[tuple[str, int]]:
    """What tells checkpoints from those of another moment: their names and times."""
    with contextlib.suppress(OSError):
        found = (folder / CHECKPOINTS).glob("*.json")
        return {(path.name, path.stat().st_mtime_ns) for path in found}
    return set()


def last_stop(folder: Path) -> dict | None:
    """Where the run before this one stopped, or None."""
    with contextlib.suppress(ParbenchError):
        return read_json(folder / "stopped.json")
    return None


def spent(folder: Path) -> float:
    """Seconds that runs before this one took, until they stopped."""
    try:
        return float((last_stop(folder) or {})["seconds"])
    except (LookupError, TypeError, ValueError):  # damaged: it tells walltimes, no result
        return 0.0


def finished(folder: Path, out: Path, seconds: float, number: int | None) -> None:
    """Note that the cell has its result, and forget what was kept for going on."""
    write_json(folder / "wall.json", {"seconds": round(spent(folder) + seconds, 3)})
    write_json(folder / "finished.json", {"job": number, "metrics": read_json(out)})
    (folder / "stopped.json").unlink(missing_ok=True)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def left_behind(folder: Path, finished: bool) -> dict | None:
    """Who trains a cell, or has ``finished`` it, for a workflow that was killed; None: nobody.

    {"job": the number of its Slurm job, None where it runs without}.
    """
    with contextlib.suppress(ParbenchError):
        return read_json(folder / ("finished.json" if finished else claim.NAME))
    return None


def take_over(folder: Path, out: Path, cell: dict, data: Path, image: dict | None) -> str | None:
    """Take the result of a run whose workflow died, when this run's workflow knows of that run.

    Returns who made it, or None where there is no such result: then what was there is gone.
    Only of the same cell, code, image and data.
    """
    path = folder / "finished.json"
    if not path.exists():
        return None
    try:
        plan = folder.absolute().parent.parent / "plan" / "taken_over.json"
        expected = read_json(plan) if plan.exists() else {}
        found = read_json(path)
        metrics, number = found["metrics"], found["job"]
        known = cell["id"] in expected and str(number) == str(expected[cell["id"]])
        if known and _same(metrics, cell, data, image):
            measure.write_metrics(out, metrics)
            return "an earlier run" if number is None else f"job {number}"
    except (ParbenchError, KeyError, TypeError, ValueError, AttributeError):
        pass  # damaged: the cell is trained again
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return None


def _same(metrics: dict, cell: dict, data: Path, image: dict | None) -> bool:
    then, environment = metrics["cell"], metrics["environment"]
    code = provenance.code_of(cell)
    return (
        {**then, "run": None} == {**cell, "run": None}
        and environment["code_digest"] == provenance.combined(code)
        and environment["image_digest"] == (image and image["sha256"])
        and environment["dataset_digest"] == read_json(data / "digest.json")["sha256"]
    )


def result(metrics: Mapping) -> str:
    """The result of a cell in a few words."""
    if metrics["status"] != "ok":
        return printable(f"{metrics['status']}: {metrics['reason']}")
    seconds = metrics["train_seconds"]
    spent = f"{seconds:.1f} s" if seconds < 60 else duration(seconds)
    accuracy = metrics["test_accuracy"]
    told = "accuracy not measured" if accuracy is None else f"accuracy {accuracy:.3f}"
    return f"ok, {told}, trained in {spent}"
