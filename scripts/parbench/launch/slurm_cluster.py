"""The partitions and nodes of a Slurm cluster, as scontrol reports them."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from dataclasses import dataclass

from parbench.errors import ParbenchError

ASK_SECONDS = 60  # a busy controller answers late


@dataclass(frozen=True)
class Node:
    """A node, from `scontrol show node`."""

    cores: int
    memory_mib: int  # 0: the site does not configure it, and jobs must not ask for any
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
        """Return the partition ``name``, by default the default one; None if it does not exist."""
        if name is not None:
            return self.partitions.get(name)
        return next((part for part in self.partitions.values() if part.default), None)

    def nodes_of(self, partition: Partition) -> list[Node]:
        """Return the nodes of ``partition``."""
        return [node for node in self.nodes if partition.name in node.partitions]


def ask() -> Cluster:
    """Ask Slurm for its partitions and nodes, one call each."""
    kinds = ("partition", "node")
    return parsed(*(run("scontrol", "--all", "--oneliner", "show", kind) for kind in kinds))


def run(*words: str) -> str:
    """Return the output of one of Slurm's programs, with times as seconds since 1970.

    Raises ParbenchError with Slurm's own message if it fails.
    """
    options = {"env": {**os.environ, "SLURM_TIME_FORMAT": "%s"}, "stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=ASK_SECONDS, check=False, **options
        )
    except FileNotFoundError:
        raise ParbenchError(
            f"--profile slurm needs {words[0]}, which is not on PATH: run it on a login node of "
            "the cluster, or without the profile"
        ) from None
    except subprocess.TimeoutExpired:
        raise ParbenchError(
            f"{words[0]}: no answer from Slurm within {ASK_SECONDS} s; try: sinfo"
        ) from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        raise ParbenchError(f"{' '.join(words)}: {lines[-1]}; try: sinfo")
    return done.stdout


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
                cores=int(row.get("CPUEfctv") or row["CPUTot"]),
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
