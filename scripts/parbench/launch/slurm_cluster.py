"""Run Slurm's programs, with retries; read a cluster's partitions and nodes from scontrol."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from parbench.errors import ParbenchError

ASK_SECONDS = 60  # a busy controller answers late
# Seconds for which a request is repeated if the controller does not answer. Before anything is
# submitted, a user waits for the answer. Within a job there must be time to restart the controller
# (the Slurm plugin's 100 attempts in slurm/config.yaml take as long).
START_SECONDS = 60
JOB_SECONDS = 900
LONGEST_PAUSE = 30  # seconds between two attempts; the first pause is one second
# What Slurm's programs print if the controller cannot be reached, is busy, or just starts.
UNANSWERED = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection (refused|timed out|reset)"
    r"|Zero Bytes were transmitted|Unexpected message received|temporarily unable to accept"
    r"|Communication (connection|shutdown) failure|Message (send|receive) failure"
    r"|Transport endpoint is not connected|controller in standby",
    re.IGNORECASE,
)


def retry_sbatch_and_srun() -> None:
    """Make sbatch and srun, started by this process or its children, wait for the controller."""
    retrying = str(Path(__file__).resolve().with_name("retrying"))
    others = [folder for folder in os.environ["PATH"].split(os.pathsep) if folder != retrying]
    os.environ["PATH"] = os.pathsep.join([retrying, *others])


class RetryTimer:
    """Waiting for a controller that does not answer, for at most ``seconds``.

    ``advice``: the end of the message, for users who need not wait.
    """

    def __init__(self, seconds: float, advice: str = ""):
        self.seconds, self.advice = seconds, advice
        self._ends, self._pause = time.monotonic() + seconds, 1.0

    def waits(self, printed: str) -> bool:
        """Pause and return True if another attempt makes sense after Slurm's message ``printed``.

        Prints a message at the first pause. Returns False for any other message, or if the time is
        up.
        """
        if UNANSWERED.search(printed) is None or time.monotonic() + self._pause > self._ends:
            return False
        if self._pause == 1.0:
            print(
                f"Slurm's controller does not answer ({printed.strip().splitlines()[-1]}): asking "
                f"again for up to {self.seconds:.0f} s{self.advice}",
                file=sys.stderr,
                flush=True,
            )
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return True


@dataclass(frozen=True)
class Node:
    """A node, from `scontrol show node`."""

    cores: int
    memory_mib: int  # 0: the site does not configure it, and jobs must not request any
    gpus: dict[str, int]  # by type; a site may leave the type empty
    partitions: frozenset[str]


@dataclass(frozen=True)
class Partition:
    """A partition, from `scontrol show partition`."""

    name: str
    default: bool
    minutes: int | None  # the longest walltime; None: no limit


@dataclass(frozen=True)
class Cluster:
    """The partitions and nodes of a cluster."""

    partitions: dict[str, Partition]
    nodes: tuple[Node, ...]

    def partition(self, name: str | None) -> Partition | None:
        """Return the partition ``name``, or the default one; None if it does not exist."""
        if name is not None:
            return self.partitions.get(name)
        return next((part for part in self.partitions.values() if part.default), None)

    def existing(self, name: str | None) -> Partition:
        """Return the partition ``name``, or the default one, which must exist."""
        found = self.partition(name)
        assert found is not None
        return found

    def nodes_of(self, partition: Partition) -> list[Node]:
        """Return the nodes of ``partition``."""
        return [node for node in self.nodes if partition.name in node.partitions]


def ask() -> Cluster:
    """Ask Slurm for its partitions and nodes, one call each."""
    kinds = ("partition", "node")
    return parsed(*(run("scontrol", "--all", "--oneliner", "show", kind) for kind in kinds))


def run(*command: str, patience: float = START_SECONDS, advice: str = "") -> str:
    """Return what one of Slurm's programs prints, with times as seconds since 1970.

    If the controller does not answer, tries again for ``patience`` seconds; ``advice``: as in
    RetryTimer. Raises ParbenchError with Slurm's own message if the program fails.
    """
    done = completed(*command, patience=patience, advice=advice)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        raise ParbenchError(f"{' '.join(command)}: {lines[-1]}; try: sinfo")
    return done.stdout


def completed(
    *command: str, patience: float = START_SECONDS, advice: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's programs, as ``run`` does; return it, also if it failed."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    timer = RetryTimer(patience, advice)
    while True:
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ASK_SECONDS,
                check=False,
                env=environment,
                stdin=subprocess.DEVNULL,
            )
        except FileNotFoundError:
            raise ParbenchError(
                f"--profile slurm needs {command[0]}, which is not on PATH: run it on a login node "
                "of the cluster, or without the profile"
            ) from None
        except subprocess.TimeoutExpired:
            reason = f"Socket timed out: no answer from Slurm within {ASK_SECONDS} s"
            done = subprocess.CompletedProcess(command, 1, "", reason)
        if done.returncode == 0 or not timer.waits(done.stderr or done.stdout):
            return done


def parsed(partitions: str, nodes: str) -> Cluster:
    """Return the cluster described by the outputs of `scontrol --oneliner show`."""
    return Cluster(
        partitions={
            row["PartitionName"]: Partition(
                name=row["PartitionName"],
                default=row["Default"] == "YES",
                minutes=minutes(row["MaxTime"]),
            )
            for row in map(fields, partitions.splitlines())
        },
        nodes=tuple(
            Node(
                cores=cores(row),
                # Slurm's default is 1.
                memory_mib=memory if (memory := int(row["RealMemory"])) > 1 else 0,
                gpus=_gpus(row["Gres"]),
                partitions=frozenset(row.get("Partitions", "").split(",")),
            )
            for row in map(fields, nodes.splitlines())
        ),
    )


def fields(line: str) -> dict[str, str]:
    """Return the fields of a line of `scontrol --oneliner show`."""
    return dict(re.findall(r"(?:^|\s)([A-Za-z][\w:/]*)=(\S*)", line))


def cores(node: dict[str, str]) -> int:
    """Return how many cores of a node jobs may use; ``node``: its fields."""
    return int(node.get("CPUEfctv") or node["CPUTot"])


def _gpus(gres: str) -> dict[str, int]:
    """Parse gpu:a100:2(S:0-1),gpu:v100:1,shard:8 into {"a100": 2, "v100": 1}."""
    count_by_kind: Counter[str] = Counter()
    for kind, count in re.findall(r"(?:^|,)gpu:(?:([^:,()]+):)?(\d+)", gres):
        count_by_kind[kind] += int(count)
    return dict(count_by_kind)


def minutes(text: str) -> int | None:
    """Parse Slurm's [days-]hours:minutes:seconds into minutes, rounded down; None for no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):\d+", text)
    if match is None:
        return None
    days, hours, rest = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + rest
