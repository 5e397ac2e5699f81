"""What came of a run of a cell, in words, and what it leaves beside metrics.json.

- ``failed.json``: why the last run gave no result; gone when there is one, or when
  it was asked to end,
- ``finished.json``: the result once more, for a workflow that was killed before it took it:
  Snakemake deletes metrics.json before it runs a job again.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from parbench.cell import Cell, Pair
from parbench.data import kept
from parbench.errors import ParbenchError
from parbench.files import read_json, write_json
from parbench.launch.ranks import Ranks
from parbench.measure import metrics_json, provenance
from parbench.printable import printable
from parbench.training import checkpoint

LINES = 15  # of a log that failed.json keeps
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


def why(ranks: Ranks, nodes: int = 1) -> Failure | None:
    """What went wrong in a run of ``ranks`` on ``nodes``; None where nothing did.

    The first rank to fail is the one that counts: others lose their connections to it.
    """
    if ranks.hung is not None:
        return Failure(ranks.hung)
    words = sorted(ranks.words.values(), key=lambda each: each["time"])
    for each in words:
        if each["kind"] == "out_of_memory":
            return Failure(_said(each, ranks), out_of_memory=True)
    killed = ranks.kernel_killed and nodes == 1  # of several, this one's kernel cannot tell
    silent = [death for death in ranks.deaths if death[1] not in ranks.words]
    # Aborting is what libraries do about another rank's failure; nobody is killed for one.
    silent.sort(key=lambda death: (death[2] == -signal.SIGABRT, death[0]))
    if silent:
        when, number, code = silent[0]
        slack = 0.0 if code == -signal.SIGABRT else SLACK_SECONDS
        if not words or when <= words[0]["time"] + slack:
            sentence = f"rank {number} of {ranks.count} died: {_died_of(code)}"
            if killed and code == -signal.SIGKILL:
                return Failure(f"{sentence} by the kernel, for lack of memory", out_of_memory=True)
            return Failure(sentence)
    # Of a pair all sides print into one log.
    if (
        (ranks.status or words)
        and (task := TASK.search(ranks.printed))
        and int(task["rank"]) not in ranks.words
        and not (words and task["how"].startswith("Aborted"))
    ):
        sentence = f"rank {task['rank']} of {ranks.count} died on {task['node']}: {task['how']}"
        return Failure(sentence, out_of_memory=killed)
    if words:
        return Failure(_said(words[0], ranks))
    if ranks.status:
        last = " / ".join(ranks.printed.splitlines()[-5:])
        return Failure(f"srun: {_died_of(ranks.status)}; its last lines: {last}")
    return None


def _said(words: dict, ranks: Ranks) -> str:
    return f"rank {words['rank']} of {ranks.count}: {words['message']}"


def _died_of(code: int) -> str:
    if code < 0:
        return f"killed by signal {-code} ({signal.Signals(-code).name})"
    return f"exit status {code}"


def result(metrics: dict) -> str:
    """The result of a cell in a few words."""
    if metrics["status"] != "ok":
        return printable(f"{metrics['status']}: {metrics['reason']}")
    if "slices" in metrics:
        number = len(metrics["slices"])
        disturbed = sum(each["disturbed"] for each in metrics["slices"])
        return f"ok, {number} slices in turn, {disturbed or 'none'} of them disturbed"
    trained = metrics["train_seconds"]
    seconds = trained or metrics["inference"]["seconds"]
    spent = f"{seconds:.1f} s" if seconds < 60 else spelled(seconds)
    accuracy = metrics["test_accuracy"]
    told = "accuracy not measured" if accuracy is None else f"accuracy {accuracy:.3f}"
    return f"ok, {told}, {'trained' if trained else 'predicted'} in {spent}"


def spelled(seconds: float) -> str:
    """02:10, or 1:02:10."""
    return str(timedelta(seconds=int(seconds))).removeprefix("0:")


# ---------------------------------------------------------------- beside metrics.json


def failed(folder: Path, sentence: str, log: Path) -> None:
    """Leave the reason, where it can be written."""
    lines = log.read_text("utf-8", "replace").splitlines()[-LINES:] if log.exists() else []
    with contextlib.suppress(OSError):
        write_json(folder / "failed.json", {"sentence": sentence, "log": str(log), "lines": lines})


def forget_failure(folder: Path) -> None:
    """There is a result, or somebody asked for the end."""
    (folder / "failed.json").unlink(missing_ok=True)


def finished(out: Path, result: dict) -> None:
    """Note that the cell has its ``result``, and forget what was kept for going on."""
    write_json(out.with_name("finished.json"), result)
    forget_failure(out.parent)
    shutil.rmtree(checkpoint.folder(out), ignore_errors=True)


def take_finished(
    folder: Path, out: Path, cell: Cell | Pair, data: Path, held: list[dict | None]
) -> bool:
    """Take the result of an earlier run that nobody took, of the same cell, code, images (``held``,
    of each side) and data.

    Where there is none, what was there is gone.
    """
    path = folder / "finished.json"
    with contextlib.suppress(ParbenchError, KeyError, TypeError):  # damaged: it is trained again
        metrics = read_json(path)
        code = provenance.combined(provenance.code_of(cell))
        dataset = read_json(data / "digest.json")["sha256"]
        ours = [(code, image and image["sha256"], dataset) for image in held]
        keys = ("code_digest", "image_digest", "dataset_digest")
        theirs = [tuple(each[k] for k in keys) for each in metrics_json.environments(metrics)]
        same = {**metrics["cell"], "run": None} == {**cell.json(), "run": None}
        if same and theirs == ours and not kept.changed(cell, metrics, folder.parent):
            metrics_json.write(out, metrics)
            forget_failure(folder)
            return True
    path.unlink(missing_ok=True)
    return False
