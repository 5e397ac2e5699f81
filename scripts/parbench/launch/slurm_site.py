"""What `doctor.py --slurm` tells: each hardware's sbatch line, and what the profile should say.

Asks Slurm, and has it judge every line (`sbatch --test-only`); submits nothing.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

from parbench.cell import Hardware
from parbench.deploy.doctor import LIMITED, MISSING, OK, Check
from parbench.errors import ParbenchError
from parbench.launch import slurm, slurm_cluster
from parbench.plan import config as configuration

MINUTES = 60  # of a cell whose walltime comes from its size: only to have a line


def examine(configfiles: list[str]) -> Iterator[Check]:
    """The checks of the cluster, then a line for each hardware of the configuration."""
    config = configuration.checked(configuration.load(*configfiles))
    files = [configuration.ROOT / "config.yaml", *map(Path, configfiles)]
    try:
        cluster = slurm_cluster.ask()
    except ParbenchError as error:
        costs = "`snakemake --profile slurm` submits nothing"
        mend = "ask the cluster's operators; try: sinfo"
        yield Check("Slurm", MISSING, str(error), costs, mend, essential=True)
        return
    yield from _site(cluster, config)
    used = {
        variant.hardware
        for study in config["studies"]
        for variant in configuration.study(study).variants.values()
    }
    for name in config["hardware"]:
        yield _hardware(cluster, config, files, name, name in used)


# ---------------------------------------------------------------- the cluster


def _site(cluster: slurm_cluster.Cluster, config: dict) -> Iterator[Check]:
    said = cluster.config
    name, version = said.get("ClusterName", "?"), said.get("SLURM_VERSION", "?")
    yield Check("Slurm", OK, f"{version}, cluster {name}, {len(cluster.nodes)} nodes")
    if conf := os.environ.get("SLURM_CONF"):
        yield Check(
            "SLURM_CONF",
            LIMITED,
            conf,
            "jobs do not see it: Snakemake's plugin takes SLURM_* out of their environment",
            "make it the nodes' default, or put commands first on PATH that set it",
        )
    for partition in cluster.partitions.values():
        yield Check(f"partition {partition.name}", OK, _partition(cluster, partition))
    yield _gpus(cluster, config)
    if cluster.accounting:
        mine = "sacctmgr show associations user=$USER format=Account"
        yield Check("accounting", OK, f"on; `slurm: {{account: ...}}` may be one of: {mine}")
    else:
        yield Check("accounting", OK, "off: leave `account` and `qos` null")
    yield _job_age(cluster)
    again = {"1": "jobs may go back into the queue"}.get(
        said.get("JobRequeue", ""), "off by default"
    )
    yield Check("requeue", OK, f"{again}; slurm-requeue of slurm/config.yaml asks for it")
    preemption = said.get("PreemptType", "preempt/none")
    yield Check("preemption", OK, f"{preemption}, {said.get('PreemptMode', 'OFF')}")


def _partition(cluster: slurm_cluster.Cluster, partition: slurm_cluster.Partition) -> str:
    words = ["the default"] if partition.default else []
    words.append(f"{cluster.shapes({'partition': partition.name, 'constraint': None})}")
    words.append(f"at most {partition.minutes} min" if partition.minutes else "no time limit")
    return "; ".join(words)


def _gpus(cluster: slurm_cluster.Cluster, config: dict) -> Check:
    """How the site wants accelerators asked for."""
    kinds = sorted({kind or "(no type)" for node in cluster.nodes for kind in node.gpus})
    if not kinds:
        return Check("GPUs", OK, "no node has any")
    # --gpus is understood by one of Slurm's ways to select nodes; --gres by all.
    wanted = "gpu" if cluster.config.get("SelectType") == "select/cons_tres" else "gres"
    found = f"{', '.join(kinds)}; ask by `gpus: {wanted}`"
    if config["slurm"]["gpus"] == wanted or wanted == "gpu":
        return Check("GPUs", OK, found)
    return Check(
        "GPUs",
        MISSING,
        found,
        "sbatch refuses --gpus",
        "config.yaml: slurm: {gpus: gres}",
    )


def _job_age(cluster: slurm_cluster.Cluster) -> Check:
    """Whether squeue still knows a job when Snakemake asks how it ended."""
    said = cluster.config.get("MinJobAge", "")
    seconds = int(match[0]) if (match := re.match(r"\d+", said)) else 0
    profile = configuration.read_yaml(configuration.ROOT / "slurm" / "config.yaml")
    needed = 3 * profile["slurm-init-seconds-before-status-checks"]
    if seconds >= needed:
        return Check("MinJobAge", OK, f"{seconds} s: `slurm-status-command: squeue` works")
    found = f"{seconds} s, less than {needed}: squeue forgets a job before it is asked for"
    if cluster.accounting:
        mend = "slurm/config.yaml: slurm-status-command: sacct"
        return Check("MinJobAge", LIMITED, found, "the plugin asks sacct by itself", mend)
    mend = f"slurm/config.yaml: slurm-init-seconds-before-status-checks: {max(1, seconds // 3)}"
    return Check("MinJobAge", LIMITED, found, "a run may wait for a job that has ended", mend)


# ---------------------------------------------------------------- hardware


def _hardware(
    cluster: slurm_cluster.Cluster, config: dict, files: list[Path], name: str, used: bool
) -> Check:
    """The line that asks for a hardware, and what Slurm thinks of it."""
    label = f"{name}, in use" if used else name
    try:
        slurm.check(cluster, config, files, name)
    except ParbenchError as error:
        costs = "snakemake --profile slurm stops before it submits anything"
        return Check(label, MISSING, str(error), costs, "correct the key", essential=used)
    hardware = configuration.hardware(name, config)
    asked = slurm.settings(config, name)
    longest = cluster.partition(asked["partition"]).minutes or MINUTES
    wanted = {"runtime": min(asked["minutes"] or MINUTES, longest)}
    line = sbatch_line(wanted | slurm.resources(hardware, asked, cluster))
    if (reason := slurm.missing(cluster, hardware, asked)) is not None:
        costs = f"its cells are rows 'not run: {reason}'"
        return Check(label, LIMITED, line, costs, _elsewhere(cluster, hardware, asked))
    accepted, verdict = judged(line)
    if accepted:
        return Check(label, OK, f"{line}  # accepted: {verdict}")
    mend = f"config.yaml: slurm, or hardware.{name}.slurm"
    return Check(label, MISSING, line, f"sbatch refuses it: {verdict}", mend, essential=used)


def _elsewhere(cluster: slurm_cluster.Cluster, hardware: Hardware, asked: dict) -> str:
    """Where the site has ``hardware``, as config.yaml says it."""
    for name in cluster.partitions:
        if slurm.missing(cluster, hardware, {**asked, "partition": name}) is None:
            return f"config.yaml: hardware.{hardware.name}: {{..., slurm: {{partition: {name}}}}}"
    return "none: no partition has it"


# The plugin's names for what a job asks for, as sbatch spells them; in the plugin's order.
OPTIONS = {
    "slurm_account": "-A {}",
    "slurm_partition": "-p {}",
    "runtime": "-t {}",
    "constraint": "-C {}",
    "qos": "--qos={}",
    "mem_mb": "--mem {}",
    "nodes": "--nodes={}",
    "requeue": "--requeue",
    "tasks": "--ntasks={}",
    "cpus_per_task": "--cpus-per-task={}",
}


def sbatch_line(resources: dict[str, int | str]) -> str:
    """What a cell with these ``resources`` asks Slurm for, less names, folders and script."""
    profile = configuration.read_yaml(configuration.ROOT / "slurm" / "config.yaml")
    asked = resources | ({"requeue": True} if profile["slurm-requeue"] else {})
    words = [
        text.format(shlex.quote(str(asked[key]))) for key, text in OPTIONS.items() if key in asked
    ]
    words.append(str(asked["slurm_extra"]))
    if "gpu" in asked:
        model = f"{asked['gpu_model']}:" if "gpu_model" in asked else ""
        words.append(f"--gpus={model}{asked['gpu']}")
    if "gres" in asked:
        words.append(f"--gres={asked['gres']}")
    return " ".join(["sbatch", *words])


def judged(line: str) -> tuple[bool, str]:
    """Whether Slurm would take a job with this line, and what it says; nothing is submitted."""
    words = [*shlex.split(line), "--test-only", "--wrap=true"]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=slurm_cluster.ASK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer within {slurm_cluster.ASK_SECONDS} s"
    said = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
    if done.returncode == 0:
        return True, re.sub(r"^sbatch: Job \d+ (to start at \S+ using )?", "", said[-1])
    return False, said[-1].removeprefix("sbatch: error: ")
