"""What a Slurm cluster offers: its partitions and nodes, as scontrol tells them."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from dataclasses import dataclass

from parbench import machine
from parbench.errors import ParbenchError

ASK_SECONDS = 60  # a busy controller answers late


@dataclass(frozen=True)
class Node:
    """A node as `scontrol show node` tells it."""

    name: str
    cores: int
    memory_mib: int  # 0: the site did not say, and memory is not to be asked for
    gpus: dict[str, int]  # by type; a site may leave the type empty
    features: frozenset[str]
    partitions: frozenset[str]

    def holds(self, model: str | None, constraint: str | None = None) -> dict[str, int]:
        """Its accelerators of ``model`` by their type here; None: any.

        Where a site gives GPUs no type, a feature tells them apart: the one of ``constraint``.
        """
        named = any(machine.is_model(feature, model or "") for feature in features(constraint))
        return {
            kind: count
            for kind, count in self.gpus.items()
            if model is None or (machine.is_model(kind, model) if kind else named)
        }


@dataclass(frozen=True)
class Partition:
    """A partition as `scontrol show partition` tells it."""

    name: str
    default: bool
    minutes: int | None  # the longest walltime; None: no limit
    nodes: int | None  # the most of one job; None: no limit


@dataclass(frozen=True)
class Cluster:
    """What Slurm said of itself, once."""

    partitions: dict[str, Partition]
    nodes: tuple[Node, ...]
    config: dict[str, str]

    @property
    def accounting(self) -> bool:
        """Whether the site keeps accounts."""
        return not self.config.get("AccountingStorageType", "").endswith("/none")

    def partition(self, name: str | None) -> Partition | None:
        """The partition of this name, or the default one; None where there is no such."""
        if name is not None:
            return self.partitions.get(name)
        return next((part for part in self.partitions.values() if part.default), None)

    def shapes(self, asked: dict) -> str:
        """The nodes that ``asked`` leaves, in words, those of one kind together."""
        shapes = Counter(
            (node.cores, node.memory_mib, tuple(sorted(node.gpus.items())))
            for node in self.nodes_of(asked)
        )
        words = [
            f"{count} with {cores} cores"
            + f", {memory} MiB" * (memory > 0)
            + "".join(f", {number}x {kind or 'GPU'}" for kind, number in gpus)
            for (cores, memory, gpus), count in shapes.most_common(4)
        ]
        limits = " of that constraint" if asked["constraint"] else ""
        return f"nodes{limits}: {'; '.join(words)}" if words else f"no nodes{limits}"

    def nodes_of(self, settings: dict) -> list[Node]:
        """Nodes of the partition of ``settings`` that have the features it asks for."""
        partition = self.partition(settings["partition"])
        wanted = features(settings["constraint"])
        # Of alternatives, counts and brackets only Slurm itself knows the meaning.
        plain = re.fullmatch(r"[^|*\[\](]*", settings["constraint"] or "")
        return [
            node
            for node in self.nodes
            if partition is not None
            and partition.name in node.partitions
            and (not plain or wanted <= node.features)
        ]


def ask() -> Cluster:
    """Ask Slurm for its partitions, nodes and configuration; one call each."""
    return parsed(*(_scontrol(what) for what in ("partition", "node", "config")))


def _scontrol(what: str) -> str:
    return run("scontrol", "--all", "--oneliner", "show", what)


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


def parsed(partitions: str, nodes: str, config: str) -> Cluster:
    """The cluster that the three outputs of `scontrol --oneliner show` describe."""
    return Cluster(
        partitions={
            told["PartitionName"]: Partition(
                name=told["PartitionName"],
                default=told["Default"] == "YES",
                minutes=minutes(told["MaxTime"]),
                nodes=int(told["MaxNodes"]) if told["MaxNodes"].isdigit() else None,
            )
            for told in map(fields, partitions.splitlines())
        },
        nodes=tuple(
            Node(
                name=told["NodeName"],
                cores=int(told.get("CPUEfctv") or told["CPUTot"]),
                # Slurm's own default is 1.
                memory_mib=memory if (memory := int(told["RealMemory"])) > 1 else 0,
                gpus=_gpus(told["Gres"]),
                features=features(told["AvailableFeatures"]),
                partitions=frozenset(told.get("Partitions", "").split(",")) - {""},
            )
            for told in map(fields, nodes.splitlines())
        ),
        config=dict(re.findall(r"^(\S+)\s*= (.*?)\s*$", config, re.MULTILINE)),
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


def features(text: str | None) -> frozenset[str]:
    """The names in a node's features or a constraint: all but operators and counts."""
    words = re.split(r"[,&|()\[\]\s]+", text or "")
    return frozenset(name for word in words if (name := re.sub(r"\*\d+$", "", word))) - {"null"}


def minutes(text: str) -> int | None:
    """Slurm's [days-]hours:minutes:seconds, rounded down; None for no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, mins, _ = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + mins
