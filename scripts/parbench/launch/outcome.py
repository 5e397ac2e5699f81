"""Describe how a run of a cell ended; write the files that it leaves beside metrics.json.

- ``failed.json``: why the last run gave no result; deleted once there is a result, or when the run
  was asked to stop,
- ``finished.json``: a copy of the result. If Snakemake is killed before it records that the job
  succeeded, it deletes metrics.json and runs the job again, which then uses the copy.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from parbench import cell as cells
from parbench import identity
from parbench.errors import ParbenchError
from parbench.files import read_record, write_json
from parbench.identity import Identity
from parbench.launch.ranks import Ranks
from parbench.measure import metrics_json
from parbench.printable import printable
from parbench.training import checkpoint

if TYPE_CHECKING:
    from parbench.measure.metrics_types import PairRunJson, RunJson

LINES = 15  # of a log that failed.json keeps
# The death of one rank breaks the others' connections. The launcher may notice the death later than
# they report their errors, but by no more than this.
SLACK_SECONDS = 1.0
# srun's message about a task that failed.
TASK = re.compile(r"^srun: error: (?P<node>\S+): tasks? (?P<rank>\d+)[^:]*: (?P<how>.+)", re.M)
OUT_OF_MEMORY = "Out Of Memory"

# srun's message if it did not start any rank.
NOT_STARTED = re.compile(
    r"^srun: error: Unable to (confirm allocation|create step) for job .*", re.M
)


@dataclass(frozen=True)
class Failure:
    """Why a cell failed; ``out_of_memory`` counts as a result."""

    sentence: str
    out_of_memory: bool = False


# ---------------------------------------------------------------- in words


def failure_of(ranks: Ranks) -> Failure | None:
    """Return what went wrong in a run of ``ranks``; None if nothing did.

    The first rank to fail is the cause: the others fail when they lose their connections to it.
    """
    if ranks.hung is not None:
        return Failure(ranks.hung)
    errors = sorted(ranks.errors.values(), key=lambda error: error["time"])
    for error in errors:
        if error["kind"] == "out_of_memory":
            return Failure(_message(error, ranks), out_of_memory=True)
    silent_deaths = [death for death in ranks.deaths if death[1] not in ranks.errors]
    # Libraries abort when another rank fails, so a rank that was killed is the likelier cause.
    silent_deaths.sort(key=lambda death: (death[2] == -signal.SIGABRT, death[0]))
    if silent_deaths:
        when, rank, code = silent_deaths[0]
        slack = 0.0 if code == -signal.SIGABRT else SLACK_SECONDS
        if not errors or when <= errors[0]["time"] + slack:
            sentence = f"rank {rank} of {ranks.count} died: {_exit(code)}"
            if ranks.oom_killed and code == -signal.SIGKILL:
                return Failure(f"{sentence} by the kernel, for lack of memory", out_of_memory=True)
            return Failure(sentence)
    # Both sides of a pair print into one log, so a message may be about the other side. The steps
    # of a job have cgroups of their own, whose kills Slurm counts.
    tasks = sorted(TASK.finditer(ranks.printed), key=lambda task: task["how"] != OUT_OF_MEMORY)
    if (
        (ranks.status or errors)
        and (task := next(iter(tasks), None))
        and int(task["rank"]) not in ranks.errors
        and not (errors and task["how"].startswith("Aborted"))
    ):
        sentence = f"rank {task['rank']} of {ranks.count} died on {task['node']}: {task['how']}"
        return Failure(sentence, out_of_memory=task["how"] == OUT_OF_MEMORY)
    if errors:
        return Failure(_message(errors[0], ranks))
    if ranks.status:
        last_lines = " / ".join(ranks.printed.splitlines()[-5:])
        return Failure(f"srun: {_exit(ranks.status)}; its last lines: {last_lines}")
    return None


def not_started(ranks: Ranks) -> str | None:
    """Return srun's message if it started none of ``ranks``, else None."""
    message = NOT_STARTED.search(ranks.printed) if ranks.status else None
    return message and message[0]


def _message(error: dict, ranks: Ranks) -> str:
    return f"rank {error['rank']} of {ranks.count}: {error['message']}"


def _exit(code: int) -> str:
    if code < 0:
        return f"killed by signal {-code} ({signal.Signals(-code).name})"
    return f"exit status {code}"


def summary(metrics: RunJson | PairRunJson) -> str:
    """Return the result of a cell in a few words."""
    if metrics["status"] != "ok":
        return printable(f"{metrics['status']}: {metrics['reason']}")
    if "slices" in metrics:
        count = len(metrics["slices"])
        disturbed = sum(each["disturbed"] for each in metrics["slices"])
        return f"ok, {count} slices in turn, {disturbed or 'none'} of them disturbed"
    train_seconds, inference = metrics.get("train_seconds"), metrics.get("inference")
    predicted = inference["seconds"] if inference else 0.0
    seconds = train_seconds or predicted
    time_text = f"{seconds:.1f} s" if seconds < 60 else duration(seconds)
    accuracy = metrics.get("test_accuracy")
    score = "accuracy not measured" if accuracy is None else f"accuracy {accuracy:.3f}"
    return f"ok, {score}, {'trained' if train_seconds else 'predicted'} in {time_text}"


def duration(seconds: float) -> str:
    """Return, for example, 02:10 or 1:02:10."""
    return str(timedelta(seconds=int(seconds))).removeprefix("0:")


# ---------------------------------------------------------------- beside metrics.json


class FailureJson(TypedDict):
    """The content of failed.json: why there is no result, and the end of its log."""

    sentence: str
    log: str
    lines: list[str]


def record_failure(folder: Path, sentence: str, log: Path) -> None:
    """Write failed.json, if the disk allows it."""
    lines = log.read_text("utf-8", "replace").splitlines()[-LINES:] if log.exists() else []
    failure: FailureJson = {"sentence": sentence, "log": str(log), "lines": lines}
    with contextlib.suppress(OSError):
        write_json(folder / "failed.json", failure)


def forget_failure(folder: Path) -> None:
    """Delete failed.json: there is a result, or the run was asked to stop."""
    (folder / "failed.json").unlink(missing_ok=True)


def record_result(out: Path, result: RunJson | PairRunJson) -> None:
    """Write finished.json; delete failed.json and the checkpoints."""
    write_json(out.with_name("finished.json"), result)
    forget_failure(out.parent)
    shutil.rmtree(checkpoint.folder(out), ignore_errors=True)


def take_finished(folder: Path, out: Path, now: Identity) -> bool:
    """Copy finished.json to ``out`` if its identity is ``now``, else delete it.

    ``now``: the identity that the cell has at present. Returns whether the file was copied.
    """
    path = folder / "finished.json"
    with contextlib.suppress(ParbenchError, LookupError, TypeError, ValueError):  # damaged
        result: RunJson | PairRunJson = read_record(path, "cell")
        if not now.changes_since(identity_of(result)):
            metrics_json.write(out, result)
            forget_failure(folder)
            return True
    path.unlink(missing_ok=True)
    return False


def identity_of(result: RunJson | PairRunJson) -> Identity:
    """Return the identity of a ``result``, the content of metrics.json.

    Raises LookupError, TypeError or ValueError for other content.
    """
    cell = cells.of(result["cell"])
    if "sides" in result:
        return identity.recorded(cell, [side["environment"] for side in result["sides"]])
    return identity.recorded(cell, [result["environment"]], result.get("weights_sha256"))
