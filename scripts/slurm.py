"""What a Slurm cluster offers, and what a cell asks it for.

Slurm is the engine and snakemake-executor-plugin-slurm talks to it. Here, hardware of config.yaml
becomes that plugin's resources, and what cannot work is found before anything is submitted.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import logging
import math
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import cells
import config as configuration
import deployment
import machine
import strategies
from errors import ParbenchError
from remaining import wall_seconds

ASK_SECONDS = 60  # a busy controller answers late

# Of a cell's walltime, beside its training: starting from a cold network disk, and a reserve.
FIXED_MINUTES = 15
RESERVE = 2.0  # times what earlier runs took: nodes differ, and others use the network, too
UNKNOWN_SAMPLES = 50_000  # of a dataset that has not been made yet: as many as CIFAR-10 has

# What datasets, images, tables and the report ask for where they are jobs (slurm.prepare).
PREPARE = {"nodes": 1, "tasks": 1, "cpus_per_task": 2, "mem_mb": 8000, "runtime": 120}

# The plugin's names for what a job may ask for.
KEYS = (
    "nodes",
    "tasks",
    "tasks_per_gpu",
    "cpus_per_task",
    "mem_mb",
    "runtime",
    "slurm_partition",
    "slurm_account",
    "constraint",
    "qos",
    "gpu",
    "gpu_model",
    "gres",
    "mpi",
    "slurm_extra",
)


# ---------------------------------------------------------------- what there is


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
        named = any(machine.is_model(feature, model or "") for feature in _features(constraint))
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

    def missing(self, hardware: dict, asked: dict) -> str | None:
        """Why a cell on ``hardware`` can never start here; None where it can.

        Nodes that are down or busy count: they come back.
        """
        partition = self.partition(asked["partition"])
        wanted = resources(hardware, asked, self)
        devices, nodes, model = hardware["devices"], hardware["nodes"], hardware["gpu_model"]
        if hardware["device"] == "mps":
            return machine.missing(hardware, {"nodes": nodes})
        fitting = self.nodes_of(asked)
        needs = []
        if hardware["device"] == "cuda":
            needs.append(f"{devices}x {model}" if model else f"{devices} GPU{'s' * (devices > 1)}")
            # A job names one type: two spellings of a model never add up.
            kind = _kind(fitting, hardware, asked["constraint"]) or ""
            held = [node.holds(model, asked["constraint"]) for node in fitting]
            counts = [gpus.get(kind, 0) if model else sum(gpus.values()) for gpus in held]
            fitting = [
                node for node, count in zip(fitting, counts, strict=True) if count >= devices
            ]
        else:
            needs.append(f"{wanted['cpus_per_task']} cores")
        # Named only where it is what is missing: nobody asks for cores beside GPUs in their mind.
        for key, unit in (("cpus_per_task", "cores"), ("mem_mb", "MiB of memory")):
            least = wanted.get(key, 0)
            large = [
                node
                for node in fitting
                if (node.cores if key == "cpus_per_task" else node.memory_mib) >= least
            ]
            if len(large) < nodes <= len(fitting) and f"{least} {unit}" not in needs:
                needs.append(f"{least} {unit}")
            fitting = large
        most = partition.nodes if partition else None
        if len(fitting) >= nodes and (most is None or most >= nodes):
            return None
        what = " and ".join(needs)
        name = partition.name if partition else asked["partition"]
        there = f"partition {name} has {self.shapes(asked)}"
        if len(fitting) >= nodes:
            there = f"partition {name} gives a job at most {most}"
        if nodes > 1:
            what = f"{nodes} nodes with {what}"
            if hardware["device"] == "cpu":
                what = f"{nodes * wanted['cpus_per_task']} cores: {what}"
        return f"needs {what} ({there})"

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
        wanted = _features(settings["constraint"])
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
    """The output of one of Slurm's programs; ParbenchError with its own words where it fails."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=ASK_SECONDS, check=False
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
            fields["PartitionName"]: Partition(
                name=fields["PartitionName"],
                default=fields.get("Default") == "YES",
                minutes=minutes(fields.get("MaxTime", "")),
                nodes=int(most) if (most := fields.get("MaxNodes", "")).isdigit() else None,
            )
            for fields in map(_fields, partitions.splitlines())
            if "PartitionName" in fields
        },
        nodes=tuple(
            Node(
                name=fields["NodeName"],
                cores=int(fields.get("CPUEfctv") or fields.get("CPUTot") or 1),
                # Slurm's own default is 1.
                memory_mib=memory if (memory := int(fields.get("RealMemory", 1))) > 1 else 0,
                gpus=_gpus(fields.get("Gres", "")),
                features=_features(fields.get("AvailableFeatures")),
                partitions=frozenset(fields.get("Partitions", "").split(",")) - {""},
            )
            for fields in map(_fields, nodes.splitlines())
            if "NodeName" in fields
        ),
        config=dict(re.findall(r"^(\S+)\s*= (.*?)\s*$", config, re.MULTILINE)),
    )


def _fields(line: str) -> dict[str, str]:
    return dict(re.findall(r"(?:^|\s)([A-Za-z][\w:/]*)=(\S*)", line))


def _gpus(gres: str) -> dict[str, int]:
    """gpu:a100:2(S:0-1),gpu:v100:1,shard:8 -> {"a100": 2, "v100": 1}."""
    found: Counter[str] = Counter()
    for kind, count in re.findall(r"(?:^|,)gpu:(?:([^:,()]+):)?(\d+)", gres):
        found[kind] += int(count)
    return dict(found)


def _features(text: str | None) -> frozenset[str]:
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


# ---------------------------------------------------------------- names that do not exist


def lacking(cluster: Cluster, config: dict, files: list[Path]) -> cells.Lacking:
    """What ``cluster`` lacks for the cells of ``config``, which was read from ``files``.

    A name that does not exist there is a ParbenchError: Slurm would refuse it job by job.
    """
    software = deployment.software(config)
    checked = functools.cache(lambda name: check(cluster, config, files, name))

    def reason(group: str, cell: dict) -> str | None:
        hardware = cell["hardware"]
        checked(hardware["name"])
        missing = cluster.missing(hardware, settings(config, hardware["name"]))
        return missing or strategies.load(cell["strategy"]["name"]).unavailable(cell, software)

    return reason


def check(cluster: Cluster, config: dict, files: list[Path], name: str) -> None:
    """Check the names that cells on the hardware ``name`` give Slurm; ParbenchError has the key."""
    asked, hardware = settings(config, name), config["hardware"][name]

    def wrong(key: str, problem: str) -> ParbenchError:
        own = key in hardware.get("slurm", {})
        path = ["hardware", name, "slurm", key] if own else ["slurm", key]
        return ParbenchError(f"{configuration.holder(files, path)}: {'.'.join(path)}: {problem}")

    partitions = list(cluster.partitions)
    if cluster.partition(asked["partition"]) is None:
        value = asked["partition"]
        known = configuration.nearest(value or "", partitions)
        problem = f"there is no partition {value!r}{known}"
        if value is None:
            problem = f"this cluster has no default partition; name one: {', '.join(partitions)}"
        raise wrong("partition", problem)
    if asked["prepare"] not in ("submit", *partitions):
        known = configuration.nearest(asked["prepare"], partitions)
        raise wrong("prepare", f"neither `submit` nor a partition: {asked['prepare']!r}{known}")
    there = cluster.nodes_of({**asked, "constraint": None})
    features = sorted(frozenset().union(*(node.features for node in there)))
    for feature in sorted(_features(asked["constraint"])):
        if feature not in features:
            known = configuration.nearest(feature, features) or "; its nodes have no features"
            where = cluster.partition(asked["partition"]).name
            raise wrong(
                "constraint", f"no node of partition {where} has the feature {feature!r}{known}"
            )
    if (account := asked["account"]) is not None:
        if not cluster.accounting:
            raise wrong("account", f"{account!r}, but this cluster keeps no accounts; say null")
        if (mine := accounts()) and account.lower() not in mine:
            known = configuration.nearest(account, mine)
            raise wrong("account", f"{getpass.getuser()} may not use {account!r}{known}")
    if (qos := asked["qos"]) is not None:
        if not cluster.accounting:
            raise wrong("qos", f"{qos!r}, but without accounting a cluster has none; say null")
        if (known_qos := qualities()) and qos.lower() not in known_qos:
            raise wrong("qos", f"there is no {qos!r}{configuration.nearest(qos, known_qos)}")
    model = hardware.get("gpu_model")
    # The hardware of a paper that this cluster does not have is a row "not run"; what was written
    # for this cluster is meant to be there.
    if hardware["device"] == "cuda" and model and "slurm" in hardware:
        kinds = sorted({kind for node in there for kind in node.gpus if kind})
        if not any(node.holds(model, asked["constraint"]) for node in there):
            where = cluster.partition(asked["partition"]).name
            known = configuration.nearest(model, kinds) or "; it has no GPUs with a name"
            path = ["hardware", name, "gpu_model"]
            raise ParbenchError(
                f"{configuration.holder(files, path)}: {'.'.join(path)}: no node of partition "
                f"{where} has a GPU {model!r}{known}"
            )


@functools.cache
def accounts() -> list[str]:
    """The accounts that this user may use, in small letters; empty where the site tells nobody."""
    return _listed("show", "associations", f"user={getpass.getuser()}", "format=Account")


@functools.cache
def qualities() -> list[str]:
    """The qualities of service that the site has, in small letters."""
    return _listed("show", "qos", "format=Name")


def _listed(*words: str) -> list[str]:
    said = run("sacctmgr", "--noheader", "--parsable2", *words)
    return sorted({line.strip().lower() for line in said.splitlines()} - {""})


# ---------------------------------------------------------------- what a cell asks for


def settings(config: dict, name: str) -> dict:
    """`slurm` of config.yaml as it holds for the hardware ``name``."""
    return {**config["slurm"], **config["hardware"][name].get("slurm", {})}


def resources(hardware: dict, asked: dict, cluster: Cluster | None) -> dict[str, int | str]:
    """The plugin's resources for a cell on ``hardware``, whose settings are ``asked``; no walltime.

    ``cluster`` names the default partition, and a GPU's type as the site spells it. On a compute
    node, which asks nobody, it is None: there only counts matter.
    """
    devices, nodes = hardware["devices"], hardware["nodes"]
    on_gpus = hardware["device"] == "cuda"
    partition = cluster.partition(asked["partition"]) if cluster else None
    offered = cluster.nodes_of(asked) if cluster else []
    wanted: dict[str, int | str | None] = {
        "nodes": nodes,
        "cpus_per_task": devices * asked["cpus_per_gpu"] if on_gpus else machine.cores_of(hardware),
        "mem_mb": devices * asked["memory_mib"],
        "slurm_partition": partition.name if partition else asked["partition"],
        "slurm_account": asked["account"],
        "constraint": asked["constraint"],
        "qos": asked["qos"],
    }
    if offered and not any(node.memory_mib for node in offered):
        wanted["mem_mb"] = None  # Slurm refuses what a site has not configured
    # A requeued job goes on in the log that it began.
    extra = ["--open-mode=append", *(["--exclusive"] if asked["exclusive"] else [])]
    if nodes > 1:
        # `mpi` makes the plugin run the launcher in the batch step, whose srun has all nodes.
        wanted |= {"tasks": nodes, "mpi": "srun"}
        extra.append("--ntasks-per-node=1")
    elif not on_gpus:
        wanted["tasks"] = 1
    if on_gpus:
        kind = _kind(offered, hardware, asked["constraint"])
        typed = f"{kind}:{devices}" if kind else str(devices)
        if asked["gpus"] == "gres":
            # 0: with tasks, the plugin would ask for as many tasks a GPU.
            wanted |= {"gres": f"gpu:{typed}", "tasks_per_gpu": 0}
        elif nodes > 1:
            extra.append(f"--gpus-per-node={typed}")  # --gpus counts those of the whole job
        else:
            wanted |= {"gpu": devices, "gpu_model": kind}
    wanted["slurm_extra"] = " ".join(extra)
    return {key: value for key, value in wanted.items() if value is not None}


def _kind(offered: Iterable[Node], hardware: dict, constraint: str | None) -> str | None:
    """The site's word for the accelerators asked for; None where no word is needed."""
    model = hardware["gpu_model"]
    if model is None:
        return None
    kinds = Counter(
        kind
        for node in offered
        for kind, count in node.holds(model, constraint).items()
        if count >= hardware["devices"]
    )
    return (kinds.most_common(1)[0][0] or None) if kinds else model.lower()


def preparing(config: dict, cluster: Cluster | None) -> dict[str, int | str]:
    """Resources of the jobs that prepare and report; none where Snakemake itself runs them."""
    asked = config["slurm"]
    if asked["prepare"] == "submit":
        return {}
    wanted = {**PREPARE, "slurm_partition": asked["prepare"]}
    if asked["account"] is not None:
        wanted["slurm_account"] = asked["account"]
    partition = cluster.partition(asked["prepare"]) if cluster else None
    if partition and partition.minutes:
        wanted["runtime"] = min(wanted["runtime"], partition.minutes)
    if cluster and not any(n.memory_mib for n in cluster.nodes if asked["prepare"] in n.partitions):
        del wanted["mem_mb"]
    return wanted


class Requests:
    """What the cells of ``plan`` ask for: the plugin's resources, by cell.

    ``left`` is what ``left_behind`` found. Every hardware and every earlier run is looked at once:
    there may be thousands of cells, and of nodes.
    """

    def __init__(
        self,
        plan: cells.Plan,
        config: dict,
        cluster: Cluster | None,
        left: Mapping[str, list[str]],
    ):
        self.plan, self.config, self.cluster, self.left = plan, config, cluster, left
        self._found = functools.cache(self._of)
        self._of_hardware = functools.cache(self._without_walltime)

    def of(self, name: str) -> dict[str, int | str]:
        """Of the cell ``name``."""
        return self._found(name)

    def walltime(self, name: str) -> int:
        """Minutes that a cell may take: stated, from earlier runs of its like, or from its size."""
        cell = self.plan.cells[name]
        asked = settings(self.config, cell["hardware"]["name"])
        if asked["minutes"] is not None:
            return asked["minutes"]
        if taken := self._earlier.get(name):
            return math.ceil(max(taken) / 60 * RESERVE) + FIXED_MINUTES
        described = None
        with contextlib.suppress(ParbenchError):  # the cell itself will name what is damaged
            described = cells.described_data(cell)
        samples = cell["dataset"]["train_samples"] or (described or {}).get(
            "train", UNKNOWN_SAMPLES
        )
        training = cell["training"]
        if training["steps"] is not None:
            samples = min(samples, training["steps"] * training["global_batch"])
        seconds = training["epochs"] * samples / asked["least_samples_per_second"]
        return math.ceil(seconds / 60) + FIXED_MINUTES

    @functools.cached_property
    def _earlier(self) -> dict[str, list[float]]:
        return earlier(self.plan)

    def _without_walltime(self, name: str) -> dict[str, int | str]:
        hardware = cells.hardware(name, self.config)
        return resources(hardware, settings(self.config, name), self.cluster)

    def _of(self, name: str) -> dict[str, int | str]:
        hardware = self.plan.cells[name]["hardware"]["name"]
        wanted = dict(self._of_hardware(hardware))
        if self.cluster is None:
            return wanted
        minutes = self.walltime(name)
        partition = self.cluster.partition(wanted["slurm_partition"])
        wanted["runtime"] = min(minutes, partition.minutes or minutes)
        if name in self.left:
            wanted["slurm_extra"] += f" --dependency=afterany:{':'.join(self.left[name])}"
        return wanted


# ---------------------------------------------------------------- while the controller is away


def outlast_silence() -> None:
    """Have Snakemake go on waiting for its jobs while Slurm gives no answer.

    Where a controller is away, as when it is restarted, the executor plugin forgets all the jobs
    that it waits for, and Snakemake never ends. With an empty answer it waits for all of them.
    """
    import snakemake_executor_plugin_slurm as plugin

    asked = plugin.query_job_status

    async def query(command: str, logger: logging.Logger) -> tuple[dict[str, str], float]:
        states, seconds = await asked(command, logger)
        return ({}, 0.0) if states is None else (states, seconds)

    plugin.query_job_status = query


# ---------------------------------------------------------------- what an earlier run left behind


def left_behind(folder: Path) -> dict[str, list[str]]:
    """Jobs of cells of this work folder that Slurm still has, by cell, the latest last.

    Snakemake's lock lets one process submit from a folder at a time: theirs was killed. Their
    results count, so the new job of such a cell starts when they have ended.
    """
    found: dict[str, list[str]] = {}
    said = run("squeue", "--me", "--noheader", "--sort=i", "--format=%i|%k|%Z")
    for line in said.splitlines():
        job, comment, workdir = line.split("|", 2)
        cell = comment.partition("rule_train_wildcards_")[2]
        if cell and Path(workdir).resolve() == folder.resolve():
            found.setdefault(cell, []).append(job)
    return found


# ---------------------------------------------------------------- what earlier runs took


def earlier(plan: cells.Plan) -> dict[str, list[float]]:
    """Seconds that finished cells took from start to end: for each cell, those of all its seeds."""
    found: dict[str, list[float]] = {}
    for study in plan.studies.values():
        for group in study["groups"]:
            all_took = [wall_seconds(cells.folder(name)) for name in group["cells"]]
            seconds = [took for took in all_took if took is not None]
            found |= dict.fromkeys(group["cells"], seconds)
    return found


def predicted(names: list[str], plan: cells.Plan) -> str:
    """The node-hours that the cells ``names`` will take, by hardware, from earlier runs."""
    known = earlier(plan)
    rows: dict[str, list[float | None]] = {}
    for name in names:
        hardware = plan.cells[name]["hardware"]
        taken = known[name]
        hours = hardware["nodes"] * sum(taken) / len(taken) / 3600 if taken else None
        rows.setdefault(hardware["name"], []).append(hours)
    if not rows:
        return "predicted node-hours: none, no cell is to be trained"
    lines = ["predicted node-hours, from what earlier runs of the same cells took:"]
    width = max(map(len, [*rows, "total"]))
    for hardware, hours in [
        *sorted(rows.items()),
        ("total", [hour for row in rows.values() for hour in row]),
    ]:
        sure = [each for each in hours if each is not None]
        count = f"{len(hours)} cell{'s' * (len(hours) != 1)}"
        text = f"{sum(sure):8.2f}" if sure else "       ?"
        rest = len(hours) - len(sure)
        unknown = f", {rest} of which nothing is known yet" if rest else ""
        lines.append(f"  {hardware:<{width}} {text}  ({count}{unknown})")
    return "\n".join(lines)


def not_run(plan: cells.Plan) -> list[str]:
    """A line for each hardware that some cells cannot have, with the reason."""
    reasons = Counter(
        (plan.cells[name]["hardware"]["name"], reason) for name, reason in plan.not_run.items()
    )
    return [
        f"{count} cell{'s' * (count > 1)} on {hardware} not run: {reason}"
        for (hardware, reason), count in sorted(reasons.items())
    ]
