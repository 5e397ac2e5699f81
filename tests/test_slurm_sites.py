"""Cells in real jobs, on a cluster set up as sites set up theirs.

Accounting with an account and a QoS required, comments that a job_submit script rewrites, no
requeueing unless asked for, GPUs by NVML's names, exclusive nodes and a walltime that is limited.
Where root starts the cluster, each job also has a /tmp of its own, and, with cgroups of version 1,
no more cores and memory than it asked for.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

import require
import training
from parbench import cell as cells
from workspace import HANG_SECONDS, Workspace, small_study

NODES = ("n1", "n2", "g1", "g2")
SETTINGS = """
JobSubmitPlugins=lua
JobRequeue=0
MinJobAge=86400
ReturnToService=0
AccountingStorageTRES=gres/gpu
PartitionName=whole Nodes=n[1-2] OverSubscribe=EXCLUSIVE
PartitionName=brief Nodes=n[1-2] MaxTime=10
"""
REWRITE = """
function slurm_job_submit(job, partitions, user)
    job.comment = "rewritten"
    return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, user)
    return slurm.SUCCESS
end
"""
# Several nodes of one machine need folders of their own.
OWN_TMP = "AutoBasePath=true\n" + "".join(
    f"NodeName={name} BasePath={{folder}}/tmp-{name}\n" for name in NODES
)
CGROUP = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainCores=yes\nConstrainRAMSpace=yes\n"
FREEZER = Path("/sys/fs/cgroup/freezer")  # where Slurm keeps a job together, with version 1

LONG = "eager: {strategy: eager, hardware: one}"
QUICK = """
brief: {strategy: eager, hardware: brief}
whole: {strategy: eager, hardware: whole}
gpu: {strategy: eager, hardware: a100x1}
tight: {strategy: eager, hardware: tight}
"""
MINE = """
studies: [quick, long]
hardware:
  one: {device: cpu, devices: 1, slurm: {partition: low}}
  brief: {device: cpu, devices: 1, slurm: {partition: brief, minutes: 60}}
  whole: {device: cpu, devices: 1, slurm: {partition: whole}}
  a100x1: {device: cuda, devices: 1, gpu_model: A100, slurm: {partition: gpu}}
  stranger: {device: cpu, devices: 1, slurm: {account: theirs}}
  tight: {device: cpu, devices: 1, slurm: {memory_mib: 400}}
  privileged: {device: cpu, devices: 1, slurm: {qos: urgent}}
slurm: {account: lab, qos: normal, memory_mib: 1000, minutes: 20}
checkpoint_seconds: 0.000001
"""
PROFILE = ["--configfile", "mine.yaml", "--profile", "slurm"]
OFTEN = ["--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "5"]


@pytest.fixture(scope="module")
def site():
    """Yield a cluster as above; as another user than root, without private /tmp and cgroups."""
    require.require("slurm")
    require.require("accounting")
    from cluster import Cluster

    user, settings, files = getpass.getuser(), SETTINGS, {"job_submit.lua": REWRITE}
    accounts = ["add qos urgent", "add account lab", "add account theirs"]
    accounts.append(f"add user {user} account=lab")
    if os.geteuid() == 0:
        settings += "JobContainerType=job_container/tmpfs\nPrologFlags=Contain\n"
        files["job_container.conf"] = OWN_TMP
    if os.access(FREEZER, os.W_OK):
        settings += "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup,task/affinity\n"
        files["cgroup.conf"] = CGROUP
    # Jobs see neither their nodes' /tmp nor a cluster or a work folder there.
    cluster = Cluster(
        settings=settings,
        files=files,
        gpu="nvidia_a100-sxm4-80gb",
        accounts="\n".join(accounts),
        parent="/var/tmp",
    )
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
        for path in sorted(FREEZER.parent.glob("*/slurm_[ng][12]/**"), reverse=True):
            with contextlib.suppress(OSError):  # another cluster's
                path.rmdir()


@pytest.fixture(scope="module")
def work(site):
    """Return a workspace with cells for the site; ``failed`` lists calls of Slurm that failed."""
    folder = Path(tempfile.mkdtemp(prefix="parbench-", dir="/var/tmp"))
    work = Workspace(folder / "work")
    model = f"swin: {json.dumps({'options': training.SMALL_SWIN})}"
    quick = small_study("Quick", model, QUICK)
    (work.folder / "studies/quick.yaml").write_text(quick)
    long = small_study("Long", model, LONG, epochs=4, images=200)
    (work.folder / "studies/long.yaml").write_text(long)
    (work.folder / "mine.yaml").write_text(MINE)
    # After a checkpoint, a cell waits while a test holds it.
    line = "        _delete(written(self.folder)[:-KEPT])\n"
    held = '        while (self.folder.parent / "hold").exists():\n            time.sleep(0.01)\n'
    work.edit("scripts/parbench/training/checkpoint.py", line, line + held)
    work.failed = folder / "failed"
    for name in ("scontrol", "squeue"):
        path = folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        call = f'{site.bin / name} "$@" || {{ echo {name} "$@" >>{work.failed}; exit 1; }}'
        path.write_text(f"#!/bin/sh\n{call}\n")
        path.chmod(0o755)
    work.variables = {"PATH": f"{folder}/bin:{site.environment['PATH']}"}
    yield work
    shutil.rmtree(folder)


class Run:
    """`snakemake --profile slurm` of some cells, while it runs."""

    def __init__(self, work, site, *parts: str, hold: bool = False):
        """Start it; ``hold``: cells wait after their first checkpoint for `stopped`."""
        self.work, self.site = work, site
        done = work.parbench("cells", "--configfile", "mine.yaml", **work.variables)
        names = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("swin.")]
        self.cells = {part: next(n for n in names if f".{part}." in n) for part in parts}
        for part in parts if hold else ():
            self._folder(part).mkdir(parents=True, exist_ok=True)
            (self._folder(part) / "hold").touch()
        self.said = work.folder / f"{'-'.join(parts)}.txt"
        targets = [f"results/cells/{name}/metrics.json" for name in self.cells.values()]
        with open(self.said, "w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "snakemake", *PROFILE, *OFTEN, "--force", *targets],
                cwd=work.folder,
                env={**os.environ, **work.variables},
                stdout=said,
                stderr=said,
            )

    def _folder(self, part: str) -> Path:
        return self.work.folder / "results/cells" / self.cells[part]

    def job(self, part: str) -> int:
        """Return the job of a cell, once it is submitted."""
        pattern = rf"SLURM jobid (\d+) \(log: \S*/{re.escape(self.cells[part])}/"
        self.wait_for(lambda: re.search(pattern, self.said.read_text()))
        return int(re.search(pattern, self.said.read_text())[1])

    def details(self, part: str) -> dict[str, str]:
        """Return what Slurm says of the job of a cell."""
        shown = self.site.run("scontrol", "--oneliner", "show", "job", str(self.job(part)))
        return dict(word.partition("=")[::2] for word in shown.split())

    def stopped(self, part: str) -> psutil.Process:
        """Return the process that trains, stopped (SIGSTOP) after its first checkpoint."""
        checkpoints = self._folder(part) / "checkpoints"
        self.wait_for(lambda: [*checkpoints.glob("*.safetensors")] and self._trainers(part))
        (trainer,) = self._trainers(part)
        trainer.suspend()
        (self._folder(part) / "hold").unlink()
        return trainer

    def _trainers(self, part: str) -> list[psutil.Process]:
        words = {"train", f"results/cells/{self.cells[part]}/cell.json"}
        every = psutil.process_iter(["cmdline", "cwd"])
        here = (one for one in every if one.info["cwd"] == str(self.work.folder))
        return [one for one in here if words <= set(one.info["cmdline"] or ())]

    def ended(self) -> str:
        """Wait for its end; return its output."""
        self.wait_for(lambda: self.process.poll() is not None)
        return self.said.read_text()

    def metrics(self, part: str) -> dict:
        """Return the result of a cell."""
        return json.loads((self._folder(part) / "metrics.json").read_text())

    def failed(self, part: str) -> str:
        """Return why a cell failed; empty if it did not."""
        path = self._folder(part) / "failed.json"
        return json.loads(path.read_text())["sentence"] if path.exists() else ""

    def wait_for(self, condition) -> None:
        deadline = time.monotonic() + HANG_SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.said.read_text()
            time.sleep(0.1)


@pytest.fixture
def run(work, site):
    """Return a function that starts Snakemake for cells, named by their hardware."""
    begun = []

    def start(*parts: str, **options: bool) -> Run:
        begun.append(Run(work, site, *parts, **options))
        return begun[-1]

    yield start
    for one in begun:
        one.process.kill()
        one.process.wait()
        site.run("scancel", "--me")
        one.wait_for(lambda: site.run("squeue", "--noheader") == "")


@pytest.fixture(scope="module")
def undisturbed(work, digits, tmp_path_factory):
    """Return a function: what the long cell learns when nothing disturbs it."""

    @functools.cache
    def learned(name: str) -> dict:
        value = cells.read(work.folder / "results/cells" / name / "cell.json")
        metrics, _ = training.run(value, digits, tmp_path_factory.mktemp("undisturbed"))
        return training.learned(metrics)

    return learned


def test_what_the_site_refuses_is_known_before_anything_is_submitted(work, site):
    words = ["doctor", "--slurm", "--configfile", "mine.yaml"]
    said = work.parbench(*words, check=False, **work.variables).stdout
    lines = dict(re.findall(r"^(\S+?)(?:, in use)?  (?=(.*\n.*))", said, re.M))
    assert "account theirs appears to be invalid. Available accounts: " in lines["stranger"]
    assert "Invalid qos specification" in lines["privileged"]
    assert "accepted" in lines["one"]
    assert site.run("squeue", "--noheader") == ""


def test_a_controller_that_is_away_and_a_node_that_goes_down(run, work, site, undisturbed):
    it = run("one", hold=True)
    trainer = it.stopped("one")
    work.failed.unlink(missing_ok=True)
    site.stop("slurmctld")
    it.wait_for(work.failed.exists)
    site.start("slurmctld")
    it.wait_for(lambda: site.answers("scontrol", "ping"))
    node = it.details("one")["NodeList"]
    site.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    it.wait_for(lambda: not trainer.is_running())
    said = it.ended()
    # Not before: Slurm could start the job again on a node where its first run still ends.
    site.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    history = (site.folder / "slurmctld.log").read_text()[-3000:]
    assert it.process.returncode == 0, f"{history}\n{said}"
    assert it.details("one")["Restarts"] == "1"
    assert it.details("one")["NodeList"] != node
    assert it.metrics("one")["resumed_from"], said
    assert training.learned(it.metrics("one")) == undisturbed(it.cells["one"])


def test_a_cell_that_needs_more_memory_than_its_job_is_a_row(run, work):
    if not os.access(FREEZER, os.W_OK):
        pytest.skip("without cgroups of version 1 no job is held to its memory")
    it = run("tight")
    said = it.ended()
    assert it.process.returncode == 0, said
    assert it.details("tight")["JobState"] == "COMPLETED"
    found = it.metrics("tight")
    assert found["status"] == "out_of_memory"
    assert found["reason"].endswith(": Out Of Memory; its job had 400 MiB on each node")
