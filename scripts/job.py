"""What this process knows of the Slurm job that it runs in, and asks Slurm about it.

The executor's steps keep SLURM_JOB_ID and little else; the rest is asked of the controller, once.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass

import children
from errors import ParbenchError

SECONDS = 60  # for an answer: a controller may be busy, or just starting again
TRIES = 5
FIRST_PORT, PORTS = 29500, 20000


@dataclass(frozen=True)
class Job:
    """A Slurm job. ``made_for`` is the comment that its submitter gave it."""

    number: int
    ends: float | None = None  # time.time() at the end of its walltime
    nodes: tuple[str, ...] = ()
    cpus_per_task: int = 1
    restarts: int = 0
    made_for: str = ""

    @property
    def port(self) -> int:
        """Where the nodes of this job meet; jobs that run at once have others."""
        return FIRST_PORT + self.number % PORTS


def current() -> Job | None:
    """The job of this process; without the controller's answer only its number is known."""
    told = os.environ.get("SLURM_JOB_ID", "")
    if not told.isdigit():
        return None
    number = int(told)
    fields = _fields(number)
    if not fields:
        return Job(number)
    return Job(
        number,
        _seconds(fields.get("EndTime", "")),
        tuple(_hostnames(fields.get("NodeList", ""))),
        int(fields.get("CPUs/Task", "1")) if fields.get("CPUs/Task", "1").isdigit() else 1,
        int(fields.get("Restarts", "0")),
        fields.get("Comment", ""),
    )


def ends(number: int) -> float | None:
    """time.time() at the end of the job's walltime, as it stands now."""
    return _seconds(_fields(number).get("EndTime", ""))


def address(node: str) -> str:
    """The address by which Slurm reaches ``node``; its name where Slurm does not say."""
    status, text = _ask("scontrol", "show", "node", node, "--oneliner")
    found = re.search(r"\bNodeAddr=(\S+)", text)
    return found[1] if status == 0 and found else node


def state(number: int) -> str | None:
    """RUNNING, PENDING, ...; None where Slurm no longer knows the job, "" where it is not asked.

    Jobs that ended some minutes ago are forgotten, or shown as COMPLETED, FAILED, ...
    """
    status, text = _ask("squeue", "--noheader", "--jobs", str(number), "--format", "%T", tries=1)
    if status == 0:
        return text.split()[0] if text.split() else None
    return None if "Invalid job id" in text else ""


def preempted(number: int) -> bool:
    """Whether Slurm has asked the job to make room for another, and gives it time for that.

    If it ends by itself meanwhile, Slurm takes it for done.
    """
    fields = _fields(number)
    time_told = fields.get("PreemptTime", "None")
    return fields.get("JobState") == "RUNNING" and time_told not in ("None", "Unknown", "N/A", "0")


def requeue(number: int) -> str | None:
    """Have the job run again, from its beginning; None, or why Slurm does not."""
    status, text = _ask("scontrol", "requeue", str(number))
    return None if status == 0 else text.strip() or f"scontrol ended with status {status}"


def _fields(number: int) -> dict[str, str]:
    status, text = _ask("scontrol", "show", "job", str(number), "--oneliner")
    return dict(re.findall(r"(?:^|\s)([\w/:]+)=(\S*)", text)) if status == 0 else {}


def _hostnames(listed: str) -> list[str]:
    """The names in ``n[1-2]``."""
    if not listed or listed == "(null)":
        return []
    status, text = _ask("scontrol", "show", "hostnames", listed)
    if status != 0:
        raise ParbenchError(f"scontrol show hostnames {listed}: {text.strip()}")
    return text.split()


def _seconds(told: str) -> float | None:
    return float(told) if told.isdigit() else None


def _ask(*words: str, tries: int = TRIES) -> tuple[int, str]:
    """A program of Slurm: its status, and what it printed; asked again when it fails."""
    if shutil.which(words[0]) is None:
        return 127, f"{words[0]} is not here"
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    for _ in range(tries):
        done = children.answer(words, environment, SECONDS)
        if done.returncode == 0 or not _may_pass(done.stderr):
            break
        time.sleep(1.0)
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr


def _may_pass(text: str) -> bool:
    """Whether the controller could not be reached, as while it is started again."""
    return "contact" in text or "no answer" in text or "communication" in text.lower()
