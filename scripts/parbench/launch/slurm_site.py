"""`doctor.py --slurm`: what a cell on each hardware would ask Slurm for.

Has Slurm judge each line with `sbatch --test-only`, which submits nothing.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

from parbench.deploy.doctor import LIMITED, MISSING, OK, Check
from parbench.errors import ParbenchError
from parbench.launch import slurm, slurm_cluster
from parbench.plan import config as configuration

MINUTES = 60  # shown for cells whose walltime depends on their size


def examine(configfiles: list[str]) -> Iterator[Check]:
    """Yield a check for each hardware of the configuration."""
    config = configuration.read(configfiles)
    files = [configuration.ROOT / "config.yaml", *map(Path, configfiles)]
    cluster = slurm_cluster.ask()
    studies = map(configuration.study, config["studies"])
    used = {variant.hardware for study in studies for variant in study.variants.values()}
    for name in config["hardware"]:
        yield _hardware(cluster, config, files, name, name in used)


def _hardware(
    cluster: slurm_cluster.Cluster, config: dict, files: list[Path], name: str, used: bool
) -> Check:
    """Return the sbatch line for the hardware ``name``, with Slurm's verdict."""
    label = f"{name}, in use" if used else name
    try:
        slurm.check(cluster, config, files, name)
    except ParbenchError as error:
        costs = "snakemake --profile slurm stops before it submits anything"
        return Check(label, MISSING, str(error), costs, "correct the key", essential=used)
    hardware = configuration.hardware(name, config)
    settings = slurm.settings(config, name)
    longest = cluster.partition(settings["partition"]).minutes or MINUTES
    request = {"runtime": min(settings["minutes"] or MINUTES, longest)}
    line = sbatch_line(request | slurm.resources(hardware, settings, cluster))
    if (reason := slurm.missing(cluster, hardware, settings)) is not None:
        costs = f"its cells are rows 'not run: {reason}'"
        mend = f"config.yaml: hardware.{name}: {{..., slurm: {{partition: ...}}}}"
        return Check(label, LIMITED, line, costs, mend)
    accepted, verdict = judged(line)
    if accepted:
        return Check(label, OK, f"{line}  # accepted: {verdict}")
    mend = f"config.yaml: slurm, or hardware.{name}.slurm"
    return Check(label, MISSING, line, f"sbatch refuses it: {verdict}", mend, essential=used)


# sbatch's options for the plugin's resources, in the plugin's order.
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
    """Return the sbatch line for ``resources``, without names, folders and script."""
    profile = configuration.read_yaml(configuration.ROOT / "slurm" / "config.yaml")
    request = resources | ({"requeue": True} if profile["slurm-requeue"] else {})
    arguments = [
        text.format(shlex.quote(str(request[key])))
        for key, text in OPTIONS.items()
        if key in request
    ]
    arguments.append(str(request["slurm_extra"]))
    if "gpu" in request:
        model = f"{request['gpu_model']}:" if "gpu_model" in request else ""
        arguments.append(f"--gpus={model}{request['gpu']}")
    if "gres" in request:
        arguments.append(f"--gres={request['gres']}")
    return " ".join(["sbatch", *arguments])


def judged(line: str) -> tuple[bool, str]:
    """Return whether Slurm would accept a job with this line, and its message."""
    command = [*shlex.split(line), "--test-only", "--wrap=true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
    if done.returncode == 0:
        return True, re.sub(r"^sbatch: Job \d+ (to start at \S+ using )?", "", lines[-1])
    return False, lines[-1].removeprefix("sbatch: error: ")
