"""What came of a run of a cell, in words, and what it leaves beside metrics.json.

- ``failed.json``: why the last run gave no result; gone when there is one,
- ``stopped.json``: where a run that was asked to end has stopped, with a checkpoint kept,
- ``finished.json``: the result once more, for a workflow that was killed before it took it:
  Snakemake deletes metrics.json before it runs a job again,
- ``wall.json``: how long the cell took in all.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from parbench.cell import Cell
from parbench.errors import ParbenchError
from parbench.files import read_json, write_json
from parbench.launch.ranks import Ended
from parbench.measure import metrics_json, provenance
from parbench.plan.remaining import duration
from parbench.printable import printable

CHECKPOINTS = "checkpoints"
LINES, MOST_BYTES = 15, 65536
# A rank that is killed takes the others' connections with it. Their errors are older than the
# launcher's knowledge of the death by no more than this.
SLACK_SECONDS = 1.0
# srun's own words on how a task ended.
TASK = re.compile(r"srun: error: (?P<node>\S+): tasks? (?P<rank>\d+)[^:]*: (?P<how>.+)")


@dataclass(frozen=True)
class Failure:
    """Why a cell failed: a sentence, the last lines of a log, and where that lies.

    ``out_of_memory``: that is a result, then.
    """

    sentence: str
    lines: tuple[str, ...] = ()
    log: str | None = None
    out_of_memory: bool = False


# ---------------------------------------------------------------- why


def why(ended: Ended, count: int, output: list[str], nodes: int = 1) -> Failure | None:
    """What went wrong in a run of ``count`` ranks on ``nodes``; None where nothing did.

    The first rank to fail is the one that counts: others lose their connections to it.
    """
    if ended.hung is not None:
        return Failure(ended.hung)
    for number, (_, error) in sorted(ended.errors.items()):
        if error["kind"] == "out_of_memory":
            return Failure(_said(number, count, error), out_of_memory=True)
    spoken = min(ended.errors.items(), key=lambda item: item[1][0], default=None)
    silent = [death for death in ended.deaths if death[1] not in ended.errors]
    # Aborting is what libraries do about another rank's failure; nobody is killed for one.
    silent.sort(key=lambda death: (death[2] == -signal.SIGABRT, death[0]))
    if silent:
        when, number, code = silent[0]
        slack = 0.0 if code == -signal.SIGABRT else SLACK_SECONDS
        if spoken is None or when <= spoken[1][0] + slack:
            sentence = f"rank {number} of {count} died: {_died_of(code)}"
            # Of several nodes, this one's kernel cannot tell.
            if code == -signal.SIGKILL and ended.kernel_killed and nodes == 1:
                return Failure(f"{sentence} by the kernel, for lack of memory", out_of_memory=True)
            return Failure(sentence)
    task = next(filter(None, map(TASK.match, output)), None)
    if task and spoken is None:
        sentence = f"rank {task['rank']} of {count} died on {task['node']}: {task['how']}"
        return Failure(sentence, out_of_memory=ended.kernel_killed and nodes == 1)
    if spoken is not None:
        return Failure(_said(spoken[0], count, spoken[1][1]))
    if ended.status:
        last = " / ".join(line for line in output[-5:] if line)
        return Failure(f"srun: {_died_of(ended.status)}; its last lines: {last}")
    return None


def _said(number: int, count: int, error: dict) -> str:
    return f"rank {number} of {count}: {error.get('message', 'no message')}"


def _died_of(code: int) -> str:
    if code < 0:
        return f"killed by signal {-code} ({signal_name(-code)})"
    return f"exit status {code}"


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def result(metrics: dict) -> str:
    """The result of a cell in a few words."""
    if metrics["status"] != "ok":
        return printable(f"{metrics['status']}: {metrics['reason']}")
    seconds = metrics["train_seconds"]
    spent = f"{seconds:.1f} s" if seconds < 60 else duration(seconds)
    accuracy = metrics["test_accuracy"]
    told = "accuracy not measured" if accuracy is None else f"accuracy {accuracy:.3f}"
    return f"ok, {told}, trained in {spent}"


# ---------------------------------------------------------------- failed.json


def failed(folder: Path, sentence: str, log: Path, stopped: bool = False) -> None:
    """Leave the reason, where it can be written. ``stopped``: somebody asked for the end."""
    value = {"sentence": sentence, "log": str(log), "lines": _last_lines(log), "stopped": stopped}
    with contextlib.suppress(OSError):
        write_json(folder / "failed.json", value)


def _last_lines(log: Path) -> list[str]:
    """The end of a log, which may be long."""
    with contextlib.suppress(OSError), open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_BYTES))
        return file.read(MOST_BYTES).decode(errors="replace").splitlines()[-LINES:]
    return []


# ---------------------------------------------------------------- stopped.json, finished.json


def stopped(folder: Path, where: dict | None, seconds: float) -> str:
    """Note where a run stopped (None: nowhere in training) and how long it took until there.

    Returns what is kept, in words.
    """
    if where is not None:
        write_json(folder / "stopped.json", {**where, "seconds": round(spent(folder) + seconds, 3)})
        return (
            f"a checkpoint at epoch {where['epoch']} step {where['step']} is kept, and the same "
            "command goes on from there"
        )
    if checkpoints(folder):
        return "its last checkpoint is kept, and the same command goes on from there"
    return "before its first checkpoint; the same command starts it anew"


def checkpoints(folder: Path) -> set[tuple[str, int]]:
    """What tells checkpoints from those of another moment: their names and times."""
    with contextlib.suppress(OSError):
        found = (folder / CHECKPOINTS).glob("*.json")
        return {(path.name, path.stat().st_mtime_ns) for path in found}
    return set()


def spent(folder: Path) -> float:
    """Seconds that runs before this one took, until they stopped."""
    try:
        return float(read_json(folder / "stopped.json")["seconds"])
    except (ParbenchError, LookupError, TypeError, ValueError):  # it tells walltimes, no result
        return 0.0


def finished(folder: Path, out: Path, seconds: float) -> None:
    """Note that the cell has its result, and forget what was kept for going on."""
    write_json(folder / "wall.json", {"seconds": round(spent(folder) + seconds, 3)})
    write_json(folder / "finished.json", read_json(out))
    for name in ("stopped.json", "failed.json"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


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
