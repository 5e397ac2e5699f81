"""Show what `parbench doctor --slurm` shows: what cells on each entry of `hardware` request.

Snakemake's Slurm plugin itself makes each line, and Slurm checks it with `sbatch --test-only`,
which submits nothing.
"""

from __future__ import annotations

import functools
import getpass
import logging
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from snakemake.iocontainers import ResourceList
from snakemake_executor_plugin_slurm import (
    ExecutorSettings,
    get_account,
    get_submit_command,
    set_gres_string,
    validate_account,
    validate_slurm_extra,
)
from snakemake_interface_common.exceptions import WorkflowError

from parbench.deploy.doctor import LIMITED, MISSING, OK, Check
from parbench.errors import ParbenchError
from parbench.launch import slurm, slurm_cluster
from parbench.launch.slurm import Request
from parbench.plan import config_files
from parbench.plan.configuration import Config, Slurm

MINUTES = 60  # shown for cells whose walltime depends on their size
LOCKS = Check(
    "locks",
    OK,
    "cells on one node wait for each other, also those of other users and of jobs with a /tmp of "
    "their own: by names in the node's abstract socket namespace",
)


def examine(configfiles: list[Path]) -> Iterator[Check]:
    """Yield checks of device locks and Slurm's limits, and one for each entry of `hardware`."""
    config = config_files.read(configfiles)
    cluster = slurm_cluster.ask()
    studies = map(config_files.study, config.studies)
    used = {variant.hardware for study in studies for variant in study.variants.values()}
    yield LOCKS
    yield from _limits(config.slurm)
    for name in config.hardware:
        yield _hardware(cluster, config, name, name in used)


def _limits(settings: Slurm) -> Iterator[Check]:
    """Yield a check for each account and QoS that allows fewer queued jobs than a run submits."""
    if shutil.which("sacctmgr") is None:
        return
    user = [f"user={getpass.getuser()}"]
    user += [f"account={settings.account}"] if settings.account else []
    questions = {"account": ["assoc", *user, "format=account,maxsubmitjobs,grpsubmitjobs"]}
    if settings.qos:
        names = "format=name,maxsubmitjobsperuser,maxsubmitjobsperaccount,grpsubmitjobs"
        questions["QoS"] = ["qos", f"name={settings.qos}", names]
    jobs = _profile_file()["jobs"]
    for kind, arguments in questions.items():
        # sacctmgr fails at sites without accounting, which have no such limits.
        rows = slurm_cluster.completed("sacctmgr", "-nP", "show", *arguments).stdout.splitlines()
        for name, *limits in (row.split("|") for row in rows):
            most = min((int(limit) for limit in limits if limit.isdigit()), default=jobs)
            if most < jobs:
                found = (
                    f"{kind} {name} lets you have {most} in the queue; slurm/config.yaml: {jobs}"
                )
                costs = "sbatch refuses cells beyond them, which then count as failed"
                fix = f"snakemake --profile slurm --jobs {most}"
                yield Check("jobs at once", LIMITED, found, costs, fix)


def _hardware(cluster: slurm_cluster.Cluster, config: Config, name: str, used: bool) -> Check:
    """Return the sbatch line for the hardware ``name``, with Slurm's verdict."""
    label = f"{name}, in use" if used else name
    try:
        slurm.check(cluster, config, name)
    except ParbenchError as error:
        costs = "snakemake --profile slurm stops before it submits anything"
        return Check(label, MISSING, str(error), costs, "correct the key", essential=used)
    hardware = config.hardware[name].with_name(name)
    settings = config.slurm_of(name)
    minutes = settings.minutes or MINUTES
    runtime = slurm.within(minutes, cluster.existing(settings.partition))
    request = slurm.resources(hardware, settings, cluster) | {"runtime": runtime}
    line, refused = sbatch_line(request), None
    try:
        line = sbatch_line(request | _account(settings.account))
    except ParbenchError as error:
        refused = str(error)
    if (reason := slurm.missing(cluster, hardware, settings)) is not None:
        costs = f"its cells become rows 'not run: {reason}'"
        fix = f"config.yaml: hardware.{name}: {{..., slurm: {{partition: ...}}}}"
        return Check(label, LIMITED, line, costs, fix)
    accepted, verdict = (False, refused) if refused else try_sbatch(line)
    if accepted:
        each = "" if settings.minutes else "; -t is each cell's own"
        return Check(label, OK, f"{line}  # accepted: {verdict}{each}")
    fix = f"config.yaml: slurm, or hardware.{name}.slurm"
    by = "Snakemake's Slurm plugin" if refused else "sbatch"
    return Check(label, MISSING, line, f"{by} refuses it: {verdict}", fix, essential=used)


@dataclass(frozen=True)
class SubmittedJob:
    """The attributes of one of Snakemake's jobs that the Slurm plugin reads to submit it."""

    resources: ResourceList
    threads: int = 1


def sbatch_line(resources: Request) -> str:
    """Return the plugin's sbatch line for ``resources``.

    The line omits what differs from job to job: name, log, comment, script and work folder. Raises
    ParbenchError with the plugin's message if it refuses ``resources``.
    """
    job = SubmittedJob(ResourceList(fromdict=dict(resources)))
    own = {"run_uuid": "", "slurm_logfile": "", "comment_str": "", "workdir": ""}
    for option, key in (("-A", "account"), ("-p", "partition")):
        value = resources.get(f"slurm_{key}")
        own[key] = "" if value is None else f"{option} {shlex.quote(str(value))}"
    try:
        validate_slurm_extra(job)
        line = get_submit_command(job, own, settings=_profile()) + set_gres_string(cast(Any, job))
    except WorkflowError as error:
        raise ParbenchError(str(error)) from None
    arguments = shlex.split(line)
    return shlex.join(["sbatch", *arguments[arguments.index("--comment") + 2 :]])


@functools.cache
def _account(stated: str | None) -> Request:
    """Return the account that the plugin submits with: ``stated``, or the one that it finds.

    Raises ParbenchError if the plugin refuses the stated one.
    """
    silent = logging.Logger(__name__, logging.CRITICAL)
    try:
        account = validate_account(stated, silent) or stated if stated else get_account(silent)
    except (OSError, WorkflowError) as error:  # it needs sacctmgr or sshare
        raise ParbenchError(" ".join(str(error).split())) from None
    return {"slurm_account": account} if account else {}


def _profile() -> ExecutorSettings:
    """Return the plugin's settings in slurm/config.yaml."""
    own = {k.removeprefix("slurm-"): v for k, v in _profile_file().items() if "slurm-" in k}
    return ExecutorSettings(**{key.replace("-", "_"): value for key, value in own.items()})


def _profile_file() -> dict:
    return config_files.read_yaml(config_files.ROOT / "slurm" / "config.yaml")


def try_sbatch(line: str) -> tuple[bool, str]:
    """Return whether Slurm would accept a job with this line, and its message."""
    done = slurm_cluster.completed(*shlex.split(line), "--test-only", "--wrap=true")
    lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
    if done.returncode == 0:
        return True, re.sub(r"^sbatch: Job \d+ (to start at \S+ using )?", "", lines[-1])
    return False, re.sub(r"^(sbatch: error|allocation failure): ", "", lines[-1])
