"""What a Slurm cluster offers: its partitions and nodes, as scontrol tells them."""

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
    """A node as `scontrol show node` tells it."""

    cores: int
    memory_mib: int  # 0: the site did not say, and memory is not to be asked for
    gpus: dict[str, int]  # by type; a site may leave the type empty
    partitions: frozenset[str]


@dataclass(frozen=True)
class Partition:
    """A partition as `scontrol show partition` tells it."""

    name: str
    default: bool
    minutes: int | None  # the longest walltime; None: no limit


@dataclass(frozen=True)
class Cluster:
    """What Slurm said of itself, once."""

    partitions: dict[str, Partition]
    nodes: tuple[Node, ...]

    def partition(self, name: str | None) -> Partition | None:
        """The partition of this name, or the default one; None where there is no such."""
        if name is not None:
            return self.partitions.get(name)
        return next((part for part in self.partitions.values() if part.default), None)

    def nodes_of(self, partition: Partition) -> list[Node]:
        """The nodes of a partition."""
        return [node for node in self.nodes if partition.name in node.partitions]


def ask() -> Cluster:
    """Ask Slurm for its partitions and nodes, one call each."""
    told = (run("scontrol", "--all", "--oneliner", "show", what) for what in ("partition", "node"))
    return parsed(*told)


def run(*words: str) -> str:
    """The output of one of Slurm's programs; ParbenchError with its own words where it fails.

    Times in it are seconds since 1970.
    """
    own = {"env": {**os.environ, "SLURM_TIME_FORMAT": "%s"}, "stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=ASK_SECONDS, check=False, **own
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
        said = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        raise ParbenchError(f"{' '.join(words)}: {said[-1]}; try: sinfo")
    return done.stdout


def parsed(partitions: str, nodes: str) -> Cluster:
    """The cluster that the outputs of `scontrol --oneliner show` describe."""
    return Cluster(
        partitions={
            told["PartitionName"]: Partition(
                name=told["PartitionName"],
                default=told["Default"] == "YES",
                minutes=minutes(told["MaxTime"]),
            )
            for told in map(fields, partitions.splitlines())
        },
        nodes=tuple(
            Node(
                cores=int(told.get("CPUEfctv") or told["CPUTot"]),
                # Slurm's own default is 1.
                memory_mib=memory if (memory := int(told["RealMemory"])) > 1 else 0,
                gpus=_gpus(told["Gres"]),
                partitions=frozenset(told.get("Partitions", "").split(",")),
            )
            for told in map(fields, nodes.splitlines())
        ),
    )


def fields(line: str) -> dict[str, str]:
    """What a line of `scontrol --oneliner show` says, by its names."""
    return dict(re.findall(r"(?:^|\s)([A-Za-z][\w:/]*)=(\S*)", line))


def _gpus(gres: str) -> dict[str, int]:
    """gpu:a100:2(S:0-1),gpu:v100:1,shard:8 -> {"a100": 2, "v100": 1}."""
    found: Counter[str] = Counter()
    for kind, count in re.findall(r"(?:^|,)gpu:(?:([^:,()]+):)?(\d+)", gres):
        found[kind] += int(count)
    return dict(found)


def minutes(text: str) -> int | None:
    """Slurm's [days-]hours:minutes:seconds, rounded down; None for no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):\d+", text)
    if match is None:
        return None
    days, hours, rest = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + rest
