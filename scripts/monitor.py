"""What the terminal shows of cells that run elsewhere: a line a change of state, and a summary.

Slurm's jobs write into files of their own, and whoever submitted them sees nothing. All that is
told comes from the files that launchers leave beside a cell's metrics.json, and from what Snakemake
itself logs; nobody is asked for it, Slurm least of all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import measure
from errors import ParbenchError
from files import read_json, write_json
from printable import log_line, printable
from record import result
from remaining import duration, seconds_left, wall_seconds

LOOK_SECONDS = 2.0
# A summary after changes, but no oftener than this; and a sign of life when nothing changes.
SUMMARY_SECONDS = 15.0
SILENCE_SECONDS = 600.0
LOG_LINES = 15
STATES = ("running", "pending", "done", "failed")
# What a launcher leaves in a cell's folder; each appears and goes as a whole.
FILES = ("metrics.json", "running.json", "failed.json")

Stamp = tuple[int, int] | bytes | None


@dataclass(frozen=True)
class Failure:
    """Why a cell failed: a sentence, the last lines of a log, and where that lies.

    ``stopped``: it was asked to end, and goes on where its job is queued again.
    """

    sentence: str
    lines: tuple[str, ...] = ()
    log: str | None = None
    stopped: bool = False


@dataclass
class Watched:
    """What is known of one cell.

    ``old``: what lay in its folder before and says nothing of this run. ``settled``: all that the
    folder held at its time ``folder`` has been read.
    """

    old: dict[str, Stamp] = field(default_factory=dict)
    folder: Stamp = None
    settled: bool = False
    state: str = "pending"
    told: tuple = ()
    failure: Failure | None = None


class Monitor:
    """Follows the ``cells`` of a run in a thread that ends with the process.

    ``entries``: {id: {device, devices, like}} of all cells of the plan: those that do not run now
    tell how long their like may take.
    """

    def __init__(
        self,
        cells: Iterable[str],
        entries: Mapping[str, dict],
        folder: Path = Path("results/cells"),
        out: TextIO | None = None,
    ):
        self._folder = folder
        self._cells = {name: entries[name] for name in cells}
        self._others = {name: entries[name] for name in entries if name not in self._cells}
        self._out = out or sys.stderr
        self._watched = {name: Watched() for name in self._cells}
        # An earlier start's job that still trains a cell says so in a file from before this run.
        alive = _read(folder.parent / "plan" / "taken_over.json", {})
        for name, watched in self._watched.items():
            watched.old = self._stamps(name)
            if name in alive:
                watched.old["running.json"] = None
        self._errors: deque[tuple[str, Failure]] = deque()
        self._walls: dict[str, float] | None = None
        self._summary_due, self._summarised = True, -SILENCE_SECONDS
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="monitor", daemon=True)
        self._listener: Listener | None = None

    def start(self, logger: logging.Logger | None = None) -> None:
        """Begin to tell. ``logger`` is Snakemake's: of cells it then says nothing itself."""
        if logger is not None:
            self._listener = Listener(self, logger)
        self._thread.start()

    def stop(self) -> None:
        """Tell what is new, sum up, and end."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._listener is not None:
            self._listener.close()
        self.look()
        if self._summary_due:
            self.summarise()

    def failed(self, cell: str, failure: Failure) -> None:
        """Take note that Snakemake gave a cell up. Called from any thread."""
        self._errors.append((cell, failure))

    # ------------------------------------------------------------------- looking

    def _follow(self) -> None:
        while not self._end.wait(LOOK_SECONDS):
            self.look()
            since = time.monotonic() - self._summarised
            if since >= (SUMMARY_SECONDS if self._summary_due else SILENCE_SECONDS):
                self.summarise()

    def look(self) -> None:
        """Tell of every cell whose state changed."""
        for name, stamp in self._changed_folders():
            watched = self._watched[name]
            # Once more at the next look: one moment may have seen two changes.
            watched.settled = self._look_at(name) and watched.folder == stamp
            watched.folder = stamp
        while self._errors:
            self._give_up(*self._errors.popleft())

    def _changed_folders(self) -> list[tuple[str, Stamp]]:
        """Cells whose folder's list of files is not the one that was looked at last.

        One question to the file system a cell, where looking at each file would be three.
        """
        found = []
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                watched = self._watched.get(entry.name)
                if watched is not None:
                    with contextlib.suppress(OSError):
                        stamp = _stamp(entry.stat())
                        if stamp != watched.folder or not watched.settled:
                            found.append((entry.name, stamp))
        return found

    def _stamps(self, name: str) -> dict[str, Stamp]:
        """What tells each file from another one of its name; None where there is none."""
        found: dict[str, Stamp] = dict.fromkeys(FILES)
        for file in FILES:
            path = self._folder / name / file
            with contextlib.suppress(OSError):
                # A launcher touches its running.json: not its time says whose it is.
                found[file] = path.read_bytes() if file == "running.json" else _stamp(path.stat())
        return found

    def _look_at(self, name: str) -> bool:
        """Tell of a cell whose state changed; False where its files could not be read."""
        watched = self._watched[name]
        stamps = {
            file: None if stamp == watched.old[file] else stamp
            for file, stamp in self._stamps(name).items()
        }
        # metrics.json stands before its launcher has checked it, and while it runs.
        for file, state, tell in (
            ("running.json", "running", self._running),
            ("failed.json", "failed", self._failed),
            ("metrics.json", "done", self._done),
        ):
            if stamps[file] is not None:
                # Snakemake touches a metrics.json that is done; the others are only ever replaced.
                news = (state, None if state == "done" else stamps[file])
                text = None
                if watched.told != news:
                    try:
                        text = tell(name)
                    except (ParbenchError, KeyError, TypeError):  # gone again, or broken
                        return False
                    watched.told = news
                stopped = state == "failed" and watched.failure.stopped
                self._set(name, "pending" if stopped else state)
                if text is not None:
                    self._say(f"{self._count()}{name}: {text}")
                return True
        if watched.state != "failed":  # what Snakemake gave up needs no file
            self._set(name, "pending")
        return True

    def _set(self, name: str, state: str) -> None:
        watched = self._watched[name]
        self._summary_due |= watched.state != state
        watched.state = state

    def _give_up(self, name: str, failure: Failure) -> None:
        """Snakemake's word counts where the cell left none: who asks later finds it there, too."""
        self._look_at(name)
        watched = self._watched[name]
        if watched.state != "failed":
            self._set(name, "failed")
            self._say(f"{self._count()}{name}: {_failure_text(failure)}")
        if watched.failure is None:
            watched.failure = failure
            with contextlib.suppress(OSError):  # a full disk is no reason to be silent
                write_json(self._folder / name / "failed.json", {**asdict(failure), "job": None})
        # Of a job that died with its node, running.json is left.
        watched.old = self._stamps(name)

    # ------------------------------------------------------------------- telling

    def _running(self, name: str) -> str:
        running = read_json(self._folder / name / "running.json")
        nodes = ", ".join(running.get("nodes") or [running["host"]])
        job = f"job {running['job']} on " if running["job"] else "on "
        return f"running ({job}{nodes})"

    def _done(self, name: str) -> str:
        return result(measure.read_metrics(self._folder / name / "metrics.json"))

    def _failed(self, name: str) -> str:
        failure = read_failure(self._folder / name / "failed.json")
        self._watched[name].failure = failure
        return _failure_text(failure)

    def _count(self) -> str:
        done = sum(watched.state == "done" for watched in self._watched.values())
        return f"[{done}/{len(self._watched)}] "

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more
            print(printable(text), file=self._out, flush=True)

    def summarise(self) -> None:
        """One line: how many cells are in which state, and the time left."""
        self._summarised, self._summary_due = time.monotonic(), False
        states = Counter(watched.state for watched in self._watched.values())
        said = ", ".join(f"{states[state]} {state}" for state in STATES)
        seconds = self._seconds_left()
        left = f"; about {duration(seconds)} left" if seconds else ""
        self._say(f"parbench: {said} of {len(self._watched)} cells{left}")

    def _seconds_left(self) -> float | None:
        """As much at a time as runs now; None where nothing is known."""
        states = {name: watched.state for name, watched in self._watched.items()}
        if self._walls is None:
            self._walls = {
                name: seconds
                for name in self._others
                if (seconds := wall_seconds(self._folder / name))
            }
        walls = dict(self._walls)
        walls |= {
            name: wall_seconds(self._folder / name) for name in states if states[name] == "done"
        }
        cells = {**self._others, **self._cells}
        cells = {
            name: cell
            for name, cell in cells.items()
            if walls.get(name) or states.get(name) in ("running", "pending")
        }
        slots = Counter(cpu=0, cuda=0)
        for name, state in states.items():
            if state == "running":
                slots[self._cells[name]["device"]] += self._cells[name]["devices"]
        if not slots.total():
            return None  # all wait: who knows for how long
        return seconds_left(cells, {name: wall for name, wall in walls.items() if wall}, slots)


def _read(path: Path, otherwise: Any) -> Any:
    """A JSON file of the kind of ``otherwise``, which stands for one that is not there."""
    try:
        value = read_json(path)
    except ParbenchError:
        return otherwise
    return value if isinstance(value, type(otherwise)) else otherwise


class Listener(logging.Handler):
    """Hears from Snakemake which cells it gives up, and keeps its own many lines a job short.

    Warnings, and errors of other rules, are shown as ever; .snakemake/log has everything.
    """

    def __init__(self, monitor: Monitor, logger: logging.Logger):
        super().__init__()
        self._monitor, self._logger = monitor, logger
        self._shown = [] if logger.level <= logging.DEBUG else _terminals(logger)
        for handler in self._shown:
            handler.addFilter(_is_shown)
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Take note of a cell's failure."""
        cell = _failed_cell(record)
        if cell is not None:
            self._monitor.failed(cell, _from_snakemake(record))

    def close(self) -> None:
        """Listen no more, and let Snakemake talk again."""
        self._logger.removeHandler(self)
        for handler in self._shown:
            handler.removeFilter(_is_shown)
        super().close()


def _terminals(logger: logging.Logger) -> list[logging.Handler]:
    return [
        handler
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler)
        and not isinstance(handler, logging.FileHandler)
    ]


# Ctrl-C is answered at once, and takes until the next question to Slurm.
ANSWER = "Terminating processes"
# The plugin looks for an account where a cluster has none; where there are some, cells name one.
NOISE = ("No SLURM account given", "No account was given", "Unable to guess SLURM account")


def _is_shown(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    if record.levelno < logging.WARNING:
        return text.startswith(ANSWER)
    return not text.startswith(NOISE) and _failed_cell(record) is None


def _failed_cell(record: logging.LogRecord) -> str | None:
    """The cell whose failure a record of Snakemake's log tells."""
    if getattr(record, "rule_name", None) != "train" or record.levelno < logging.ERROR:
        return None
    outputs = getattr(record, "output", None)
    return Path(str(outputs[0])).parent.name if outputs else None


def _from_snakemake(record: logging.LogRecord) -> Failure:
    """What Snakemake says of a cell that left no word: refused, cancelled, died with its node."""
    text = str(getattr(record, "rule_msg", None) or "the job failed")
    # Behind these words stands what the submitting command was, or a hint to look for logs.
    for words in ("\n    sbatch call:", "For further error details", "Detailed failure reason"):
        text = text.partition(words)[0]
    logs = [Path(os.path.relpath(str(log))) for log in getattr(record, "log", None) or []]
    # First the cell's own, which tells nothing, or it would have told; then that of its Slurm job.
    job_log = next((log for log in reversed(logs) if log.is_file()), None)
    lines = _own_words(job_log) if job_log else []
    return Failure(" ".join(text.split()), tuple(lines[-LOG_LINES:]), job_log and str(job_log))


# What Snakemake, which every job of it starts again, puts around a job's own words.
FRAME = re.compile(
    r"\s|$|\[\w{3} \w{3} +\d|(local)?rule \w+:|RuleException:|CalledProcessError in |Command 'set "
)


def _own_words(log: Path) -> list[str]:
    """What a job's programs and Slurm itself said in the job's log."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    said, _, end = text.rpartition("Execute 1 jobs...\n")[2].partition("\nError in rule ")
    lines = [line for line in said.splitlines() if not FRAME.match(line)]
    return lines + [line for line in end.splitlines() if line.startswith(("slurmstepd:", "srun:"))]


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_ino


def read_failure(path: Path) -> Failure:
    """What was left of a cell that failed. ParbenchError where that cannot be read."""
    value = read_json(path)
    try:
        return Failure(
            str(value["sentence"]),
            tuple(map(str, value["lines"])),
            value["log"],
            value.get("stopped", False),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ParbenchError(f"{path}: tells of no failure ({error!r}); delete it") from None


def _failure_text(failure: Failure) -> str:
    lines = [f"{'stopped' if failure.stopped else 'failed'}: {failure.sentence}"]
    lines += [f"  | {log_line(line)}" for line in failure.lines]
    lines += [f"  log: {failure.log}"] if failure.log else []
    return "\n".join(lines)
