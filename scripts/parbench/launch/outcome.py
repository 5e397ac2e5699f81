"""What came of a run of a cell, in words, and what it leaves beside metrics.json.

- ``failed.json``: why the last run gave no result; gone when there is one,
- ``finished.json``: the result once more, for a workflow that was killed before it took it:
  Snakemake deletes metrics.json before it runs a job again.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from parbench.cell import Cell
from parbench.errors import ParbenchError
from parbench.files import read_json, write_json
from parbench.launch.ranks import Ended
from parbench.measure import metrics_json, provenance
from parbench.printable import printable
from parbench.training import checkpoint

LINES, MOST_BYTES = 15, 65536
# A rank that is killed takes the others' connections with it. Their errors are older than the
# launcher's knowledge of the death by no more than this.
SLACK_SECONDS = 1.0
# srun's own words on how a task ended.
TASK = re.compile(r"^srun: error: (?P<node>\S+): tasks? (?P<rank>\d+)[^:]*: (?P<how>.+)", re.M)


@dataclass(frozen=True)
class Failure:
    """Why a cell failed. ``out_of_memory``: that is a result, then."""

    sentence: str
    out_of_memory: bool = False


# ---------------------------------------------------------------- why


def why(ended: Ended, count: int, log: Path, nodes: int = 1) -> Failure | None:
    """What went wrong in a run of ``count`` ranks on ``nodes``; None where nothing did.

    The first rank to fail is the one that counts: others lose their connections to it.
    """
    if ended.hung is not None:
        return Failure(ended.hung)
    for number, (_, error) in sorted(ended.errors.items()):
        if error["kind"] == "out_of_memory":
            return Failure(_said(number, count, error), out_of_memory=True)
    spoken = min(ended.errors.items(), key=lambda item: item[1][0], default=None)
    killed = ended.kernel_killed and nodes == 1  # of several, this one's kernel cannot tell
    silent = [death for death in ended.deaths if death[1] not in ended.errors]
    # Aborting is what libraries do about another rank's failure; nobody is killed for one.
    silent.sort(key=lambda death: (death[2] == -signal.SIGABRT, death[0]))
    if silent:
        when, number, code = silent[0]
        slack = 0.0 if code == -signal.SIGABRT else SLACK_SECONDS
        if spoken is None or when <= spoken[1][0] + slack:
            sentence = f"rank {number} of {count} died: {_died_of(code)}"
            if killed and code == -signal.SIGKILL:
                return Failure(f"{sentence} by the kernel, for lack of memory", out_of_memory=True)
            return Failure(sentence)
    if spoken is not None:
        return Failure(_said(spoken[0], count, spoken[1][1]))
    if task := TASK.search(end_of(log)):
        sentence = f"rank {task['rank']} of {count} died on {task['node']}: {task['how']}"
        return Failure(sentence, out_of_memory=killed)
    if ended.status:
        last = " / ".join(end_of(log).splitlines()[-5:])
        return Failure(f"srun: {_died_of(ended.status)}; its last lines: {last}")
    return None


def _said(number: int, count: int, error: dict) -> str:
    return f"rank {number} of {count}: {error['message']}"


def _died_of(code: int) -> str:
    if code < 0:
        return f"killed by signal {-code} ({signal.Signals(-code).name})"
    return f"exit status {code}"


def end_of(log: Path) -> str:
    """The end of a log, which may be long; empty where it cannot be read."""
    with contextlib.suppress(OSError), open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_BYTES))
        return file.read(MOST_BYTES).decode(errors="replace")
    return ""


def result(metrics: dict) -> str:
    """The result of a cell in a few words."""
    if metrics["status"] != "ok":
        return printable(f"{metrics['status']}: {metrics['reason']}")
    seconds = metrics["train_seconds"]
    spent = f"{seconds:.1f} s" if seconds < 60 else tqdm.format_interval(seconds)
    accuracy = metrics["test_accuracy"]
    told = "accuracy not measured" if accuracy is None else f"accuracy {accuracy:.3f}"
    return f"ok, {told}, trained in {spent}"


# ---------------------------------------------------------------- beside metrics.json


def failed(folder: Path, sentence: str, log: Path, stopped: bool = False) -> None:
    """Leave the reason, where it can be written. ``stopped``: somebody asked for the end."""
    lines = end_of(log).splitlines()[-LINES:]
    value = {"sentence": sentence, "log": str(log), "lines": lines, "stopped": stopped}
    with contextlib.suppress(OSError):
        write_json(folder / "failed.json", value)


def kept(out: Path, stopped: dict | None) -> str:
    """What the run that writes ``out`` and was asked to end has left, in words.

    ``stopped``: where its training stopped, None where it did not in time.
    """
    if stopped is not None:
        return (
            f"a checkpoint at epoch {stopped['epoch']} step {stopped['step']} is kept, and the "
            "same command goes on from there"
        )
    if checkpoint.written(checkpoint.folder(out)):
        return "its last checkpoint is kept, and the same command goes on from there"
    return "before its first checkpoint; the same command starts it anew"


def finished(folder: Path, out: Path) -> None:
    """Note that the cell has its result, and forget what was kept for going on."""
    write_json(folder / "finished.json", read_json(out))
    (folder / "failed.json").unlink(missing_ok=True)
    shutil.rmtree(checkpoint.folder(out), ignore_errors=True)


def take_finished(folder: Path, out: Path, cell: Cell, data: Path, image: dict | None) -> bool:
    """Take the result of an earlier run that nobody took, of the same cell, code, image and data.

    Where there is none, what was there is gone.
    """
    path = folder / "finished.json"
    with contextlib.suppress(ParbenchError, KeyError, TypeError):  # damaged: it is trained again
        metrics = read_json(path)
        environment = metrics["environment"]
        if (
            {**metrics["cell"], "run": None} == {**cell.json(), "run": None}
            and environment["code_digest"] == provenance.combined(provenance.code_of(cell))
            and environment["image_digest"] == (image and image["sha256"])
            and environment["dataset_digest"] == read_json(data / "digest.json")["sha256"]
        ):
            metrics_json.write(out, metrics)
            (folder / "failed.json").unlink(missing_ok=True)
            return True
    path.unlink(missing_ok=True)
    return False
