"""Translate hardware of config.yaml into resources of snakemake-executor-plugin-slurm.

What cannot work on the cluster is found before anything is submitted.
"""

from __future__ import annotations

import functools
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypedDict, cast

from parbench import machine
from parbench.cell import Cell, Hardware, Pair
from parbench.launch import slurm_job
from parbench.launch.slurm_cluster import Cluster, Node, Partition, run
from parbench.plan import state
from parbench.plan.configuration import Config, Slurm
from parbench.plan.expansion import Plan, WhyUnavailable, missing_packages
from parbench.software import Software
from parbench.words import nearest

# Minutes added to the walltime of each cell: a start from a cold network disk, and a reserve.
FIXED_MINUTES = 15
RESERVE = 2.0  # factor on the time of earlier runs: nodes differ, and the network is shared
PAIR_MINUTES = 15  # for a pair without an earlier run
UNKNOWN_SAMPLES = 50_000  # assumed for a dataset that has not been made yet, as in CIFAR-10


class Request(TypedDict, total=False):
    """Resources of one job, by the plugin's names."""

    nodes: int
    tasks: int
    cpus_per_task: int
    mem_mb: int
    runtime: int
    slurm_partition: str
    slurm_account: str
    constraint: str
    qos: str
    mpi: str
    slurm_extra: str


KEYS = tuple(Request.__annotations__)
# For datasets, images, tables and the report where these are jobs (slurm.prepare).
PREPARE_MINUTES = 120
PREPARE: Request = {
    "nodes": 1,
    "tasks": 1,
    "cpus_per_task": 2,
    "mem_mb": 8000,
    "runtime": PREPARE_MINUTES,
}

# Separates squeue's columns: no path or comment contains it.
SEPARATOR = "\x1f"


# ---------------------------------------------------------------- what the cluster lacks


def why_unavailable(cluster: Cluster, config: Config, software: Software) -> WhyUnavailable:
    """Return a function that returns what ``cluster`` or ``software`` lack for a cell, or None.

    The function raises ParbenchError for a partition that does not exist, for which Slurm would
    refuse every job.
    """
    check_once = functools.cache(lambda name: check(cluster, config, name))

    def reason(group: str, cell: Cell) -> str | None:
        hardware = cell.hardware
        check_once(hardware.name)
        problem = missing(cluster, hardware, config.slurm_of(hardware.name))
        return problem or missing_packages(cell, software)

    return reason


def missing(cluster: Cluster, hardware: Hardware, settings: Slurm) -> str | None:
    """Return why a cell on ``hardware`` can never start on ``cluster``; None if it can.

    Nodes that are down or busy count as available, since they come back.
    """
    if hardware.device == "mps":
        return machine.missing(hardware, {"cpu": 0, "cuda": {}, "nodes": hardware.nodes})
    partition = cluster.existing(settings.partition)
    offered = cluster.nodes_of(partition)
    request = resources(hardware, settings, cluster)
    cores, memory = machine.cores_of(hardware), request.get("mem_mb", 0)
    needs = [f"{cores} cores"] + ([f"{memory} MiB of memory"] if memory else [])
    fitting = [node for node in offered if node.cores >= cores and node.memory_mib >= memory]
    if hardware.device == "cuda":
        needs.insert(0, f"{hardware.devices}x {hardware.gpu_model or 'GPU'}")
        # A job names a single GPU type, so two spellings of one model do not add up.
        kind = _kind(offered, hardware)
        fitting = [
            node
            for node in fitting
            if (node.gpus.get(kind, 0) if kind else sum(node.gpus.values())) >= hardware.devices
        ]
    if len(fitting) >= hardware.nodes:
        return None
    nodes = f"{hardware.nodes} nodes with " if hardware.nodes > 1 else ""
    supply = f"partition {partition.name} has {len(fitting) or 'none'}"
    return f"needs {nodes}{', '.join(needs)} ({supply})"


def check(cluster: Cluster, config: Config, name: str) -> None:
    """Raise ParbenchError, naming the key, if the partition of hardware ``name`` does not exist.

    Accounts, QoS and constraints are checked by sbatch: see `parbench doctor --slurm`.
    """
    value = config.slurm_of(name).partition
    if cluster.partition(value) is not None:
        return
    own = config.hardware[name].slurm
    of_hardware = own is not None and "partition" in own.model_fields_set
    key = ["hardware", name, "slurm", "partition"] if of_hardware else ["slurm", "partition"]
    partitions = list(cluster.partitions)
    problem = f"there is no partition {value!r}{nearest(value or '', partitions)}"
    if value is None:
        problem = f"this cluster has no default partition; name one: {', '.join(partitions)}"
    raise config.error(key, problem)


# ---------------------------------------------------------------- what a cell requests


def resources(hardware: Hardware, settings: Slurm, cluster: Cluster | None) -> Request:
    """Return the plugin's resources for ``hardware`` with ``settings``; no walltime.

    ``cluster`` supplies the default partition and the site's spelling of GPU types. It is None on a
    compute node, where only the counts matter.
    """
    devices, nodes = hardware.devices, hardware.nodes
    on_gpus = hardware.device == "cuda"
    partition = cluster.partition(settings.partition) if cluster else None
    offered = cluster.nodes_of(partition) if cluster and partition else []
    request: dict[str, int | str | None] = {
        "nodes": nodes,
        "cpus_per_task": machine.cores_of(hardware),
        "mem_mb": devices * settings.memory_mib,
        "slurm_partition": partition.name if partition else settings.partition,
        "slurm_account": settings.account,
        "constraint": settings.constraint,
        "qos": settings.qos,
    }
    if offered and not any(node.memory_mib for node in offered):
        request["mem_mb"] = None  # this site does not configure memory; Slurm would refuse it
    # Keeps the log of a job that is requeued.
    extra = ["--open-mode=append", *(["--exclusive"] if settings.exclusive else [])]
    if nodes > 1:
        # `mpi` makes the plugin run the launcher in the batch step, where srun reaches all nodes.
        request |= {"tasks": nodes, "mpi": "srun"}
        extra.append("--ntasks-per-node=1")
    else:
        request["tasks"] = 1
    if on_gpus:
        kind = _kind(offered, hardware)
        gpus = shlex.quote(f"{kind}:{devices}" if kind else str(devices))
        # Not by the plugin's resources: it refuses types with a hyphen, which NVML's names have.
        # It also refuses a --gres in slurm_extra, but not one in quotes, which the shell removes.
        extra.append(
            f"'--gres'=gpu:{gpus}" if settings.gpus == "gres" else f"--gpus-per-node={gpus}"
        )
    request["slurm_extra"] = " ".join(extra)
    return cast(Request, {key: value for key, value in request.items() if value is not None})


def _kind(offered: Iterable[Node], hardware: Hardware) -> str | None:
    """Return the site's name for the requested GPU model; None if any model will do."""
    model = hardware.gpu_model
    if model is None:
        return None
    kinds = Counter(
        kind
        for node in offered
        for kind, count in node.gpus.items()
        if machine.is_model(kind, model) and count >= hardware.devices
    )
    return kinds.most_common(1)[0][0] if kinds else model.lower()


def within(minutes: int, partition: Partition) -> int:
    """Return a walltime of ``minutes``, or the longest one that ``partition`` allows."""
    return min(minutes, partition.minutes or minutes)


def preparing(slurm: Slurm, cluster: Cluster | None) -> Request:
    """Return the resources of preparing and reporting jobs; none if Snakemake runs them itself."""
    if slurm.prepare == "submit":
        return {}
    request: Request = {**PREPARE, "slurm_partition": slurm.prepare}
    if slurm.account is not None:
        request["slurm_account"] = slurm.account
    partition = cluster.partition(slurm.prepare) if cluster else None
    if partition:
        request["runtime"] = within(PREPARE_MINUTES, partition)
    if cluster and not any(n.memory_mib for n in cluster.nodes if slurm.prepare in n.partitions):
        del request["mem_mb"]
    return request


def largest(cell: Cell | Pair) -> Hardware:
    """Return the hardware that the job of ``cell`` asks for: its largest side's, GPUs first."""
    candidates = (side.hardware for side in cell.sides)
    return max(candidates, key=lambda each: (each.device != "cpu", each.nodes * each.devices))


class Requests:
    """The plugin's resources for the cells of ``plan``: ``of(name)``.

    ``earlier_jobs`` is the result of ``find_earlier_jobs``. Results are cached per hardware and per
    earlier run, since there may be thousands of cells and nodes.
    """

    def __init__(
        self,
        plan: Plan,
        config: Config,
        cluster: Cluster | None,
        earlier_jobs: Mapping[str, list[str]],
    ):
        self.plan, self.config, self.cluster, self.earlier_jobs = (
            plan,
            config,
            cluster,
            earlier_jobs,
        )
        self.of = functools.cache(self._of)
        self._of_hardware = functools.cache(self._without_walltime)

    def _walltime(self, name: str) -> int:
        """Return a cell's walltime in minutes.

        It is configured, or derived from earlier runs of the group, or from the size of the cell.
        """
        cell = self.plan.cells[name]
        slurm = self.config.slurm_of(largest(cell).name)
        if slurm.minutes is not None:
            return slurm.minutes
        if longest := self._longest.get(name):
            return math.ceil(longest / 60 * RESERVE) + FIXED_MINUTES
        if isinstance(cell, Pair):
            return PAIR_MINUTES + FIXED_MINUTES
        dataset = state.described_data(cell) or {"train": UNKNOWN_SAMPLES}
        samples = cell.dataset.train_samples or dataset["train"]
        training = cell.training
        if training.steps is not None:
            samples = min(samples, training.steps * training.global_batch)
        seconds = training.epochs * samples / slurm.least_samples_per_second
        return math.ceil(seconds / 60) + FIXED_MINUTES

    @functools.cached_property
    def _longest(self) -> dict[str, float]:
        """The seconds of the longest earlier run of each cell's group, by cell."""
        longest_by_cell: dict[str, float] = {}
        for group in (group for plan in self.plan.studies.values() for group in plan.measured):
            if times := [seconds for cell in group.cells if (seconds := state.seconds_of(cell))]:
                longest_by_cell |= dict.fromkeys(group.cells, max(times))
        return longest_by_cell

    def _without_walltime(self, name: str) -> Request:
        hardware = self.config.hardware[name].with_name(name)
        return resources(hardware, self.config.slurm_of(name), self.cluster)

    def _of_all_sides(self, cell: Cell | Pair) -> Request:
        """Return the resources without walltime. The sides of a pair are loaded at once: their
        memory adds up."""
        request = self._of_hardware(largest(cell).name).copy()
        if isinstance(cell, Pair):
            side_requests = [self._of_hardware(side.hardware.name) for side in cell.sides]
            request["cpus_per_task"] = max(one.get("cpus_per_task", 1) for one in side_requests)
            if "mem_mb" in request:
                request["mem_mb"] = sum(one.get("mem_mb", 0) for one in side_requests)
        return request

    def _of(self, name: str) -> Request:
        request = self._of_all_sides(self.plan.cells[name])
        if self.cluster is None:
            return request
        minutes = self._walltime(name)
        partition = self.cluster.existing(request.get("slurm_partition"))
        request["runtime"] = within(minutes, partition)
        if name in self.earlier_jobs:
            extra = f"--dependency=afterany:{':'.join(self.earlier_jobs[name])}"
            request["slurm_extra"] = f"{request.get('slurm_extra', '')} {extra}"
        return request


# ---------------------------------------------------------------- jobs of earlier runs


def find_earlier_jobs(folder: Path) -> dict[str, list[str]]:
    """Return the jobs that Slurm still has for cells of this project's folder, by cell, oldest
    first.

    Only one Snakemake can run per folder, so the one that submitted these jobs must have been
    killed. Their results are used: the new job of such a cell starts only after they have ended.
    """
    jobs_by_cell: dict[str, list[str]] = {}
    columns = "".join(f"{name}:{SEPARATOR}," for name in ("JobID", "WorkDir", "STDOUT", "Comment"))
    output = run("squeue", "--me", "--noheader", "--sort=i", f"--Format={columns}")
    for row in (line.split(SEPARATOR) for line in output.split("\n")):
        if len(row) < 4:  # the rest of a comment that has several lines
            continue
        job, workdir, log, comment = row[:4]
        cell = slurm_job.cell_of(log, comment)
        if cell and Path(workdir).resolve() == folder.resolve():
            jobs_by_cell.setdefault(cell, []).append(job)
    return jobs_by_cell


def not_run(plan: Plan) -> list[str]:
    """Return a line for each entry of `hardware` on which cells cannot run, with the reason."""
    reasons = Counter((_places(plan.cells[name]), reason) for name, reason in plan.not_run.items())
    return [
        f"{count} cell{'s' * (count > 1)} on {hardware} not run: {reason}"
        for (hardware, reason), count in sorted(reasons.items())
    ]


def _places(cell: Cell | Pair) -> str:
    return " and ".join(dict.fromkeys(side.hardware.name for side in cell.sides))
