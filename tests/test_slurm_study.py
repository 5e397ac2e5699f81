"""`snakemake --profile slurm` on a real cluster: what it requests, trains and takes over."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from parbench.errors import ParbenchError
from parbench.launch import slurm_cluster
from workspace import HANG_SECONDS, Workspace, small_study

STUDY = small_study(
    "Some cells",
    "resnet18: {}",
    """
eager: {strategy: eager, hardware: cpu1}
ddp: {strategy: ddp, hardware: cpu8}
nodes: {strategy: ddp, hardware: 2x1}
gpu: {strategy: eager, hardware: a30x1}
""",
)
MINE = """
studies: [two]
hardware:
  cpu8: {device: cpu, devices: 8, slurm: {partition: gpu}}
  2x1: {device: cpu, devices: 1, nodes: 2}
datasets: {other: {kind: digits}}
slurm: {memory_mib: 1000, minutes: 5}
"""
PROFILE = ["--configfile", "mine.yaml", "--profile", "slurm"]
QUICK = ["--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "5"]


@pytest.fixture(scope="module")
def work(cluster, tmp_path_factory):
    """Return a workspace with cells for the cluster; its ``seen`` logs sbatch's arguments."""
    work = Workspace(tmp_path_factory.mktemp("slurm") / "work")
    (work.folder / "studies/two.yaml").write_text(STUDY)
    (work.folder / "mine.yaml").write_text(MINE)
    seen = work.folder / "seen"
    seen.mkdir()
    real = shutil.which("sbatch", path=cluster.environment["PATH"])
    (seen / "sbatch").write_text(f'#!/bin/sh\necho "$@" >>{seen}/lines\nexec {real} "$@"\n')
    (seen / "sbatch").chmod(0o755)
    work.variables = {"PATH": f"{seen}:{cluster.environment['PATH']}"}
    work.seen = seen / "lines"
    return work


def snakemake(work, *words: str, check: bool = True) -> subprocess.CompletedProcess:
    return work.snakemake(*PROFILE, *words, check=check, **work.variables)


def cell_of(work, part: str) -> str:
    found = work.parbench("cells", "--configfile", "mine.yaml", **work.variables)
    return next(line.split()[0] for line in found.stdout.splitlines() if part in line)


@pytest.fixture(scope="module")
def doctor(work, cluster) -> dict[str, str]:
    """Return the doctor's lines by hardware, before anything is submitted."""
    words = ["doctor", "--slurm", "--configfile", "mine.yaml"]
    result = work.parbench(*words, check=False, **work.variables)
    assert result.returncode == 0
    assert "config.yaml: hardware.a100x2: {..., slurm: {partition: ...}}" in result.stdout
    assert cluster.run("squeue", "--noheader") == ""
    return {line.split("  ")[0]: line for line in result.stdout.splitlines()}


@pytest.fixture
def asked(cluster, monkeypatch) -> slurm_cluster.Cluster:
    """Return what the cluster says about itself."""
    monkeypatch.setenv("PATH", cluster.environment["PATH"])
    return slurm_cluster.ask()


def test_what_a_real_cluster_says_of_itself(asked):
    assert asked.partition(None).name == "main"
    assert asked.partitions["short"].minutes == 1
    assert {node.cores for node in asked.nodes_of(asked.partition("main"))} == {2}
    assert [node.gpus for node in asked.nodes_of(asked.partition("gpu"))] == [{"a100": 2}] * 2


def test_without_an_answer_it_is_said_what_to_try(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ParbenchError, match="scontrol, which is not on PATH: run it on a login"):
        slurm_cluster.ask()


def test_a_wrong_name_stops_before_anything_is_submitted(work):
    wrong = ["--config", "slurm={partition: mian}"]
    result = snakemake(work, *wrong, check=False)
    assert result.returncode == 2
    sentence = "slurm.partition: there is no partition 'mian'; did you mean 'main'?"
    assert sentence in result.stderr
    assert result.stdout == ""
    assert not work.seen.exists()
    assert snakemake(work, *wrong, "-n", check=False).returncode == 2


def test_an_eight_core_cell_submitted_from_two_cores(work, cluster, doctor):
    """Its job waits in a partition that is down; it is what the doctor foretold."""
    name = cell_of(work, "ddp.cpu8")
    cluster.run("scontrol", "update", "PartitionName=gpu", "State=DOWN")
    few = sorted(os.sched_getaffinity(0))[:2]
    submitter = subprocess.Popen(
        [sys.executable, "-m", "snakemake", *PROFILE, *QUICK, f"results/cells/{name}/metrics.json"],
        cwd=work.folder,
        env={**os.environ, **work.variables},
        preexec_fn=lambda: os.sched_setaffinity(0, few),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        query = ["squeue", "--noheader", "--format=%i|%k|%C|%D|%l|%P|%m"]
        while not (jobs := cluster.run(*query).split()):
            assert submitter.poll() is None, submitter.stdout.read()
        _, comment, *asked = jobs[0].split("|")
        assert comment == f"rule_train_wildcards_{name}"
        assert asked == ["8", "1", "5:00", "gpu", "8000M"]
        submitted = work.seen.read_text().partition(f"{comment} ")[2].partition(" -D ")[0]
        assert "--ntasks=1 --cpus-per-task=8 " in submitted
        assert f"sbatch {' '.join(submitted.split())}  # accepted: " in doctor["cpu8, in use"]
    finally:
        submitter.kill()  # SIGTERM would make it wait for its job
        submitter.communicate()
        cluster.run("scancel", "--me")
        cluster.run("scontrol", "update", "PartitionName=gpu", "State=UP")
    snakemake(work, "--unlock")


def find_earlier_jobs(work, cluster, words: list[str], folder: str | None = None) -> str:
    """Submit a job that nobody waits for, and that only scancel ends; return its ID."""
    words = ["--output=/dev/null", "--time=1-0", *words, "-D", folder or str(work.folder)]
    return cluster.run("sbatch", "--parsable", *words, "--wrap=sleep infinity").strip()


def test_a_dry_run_tells_of_a_job_that_was_left_behind_and_writes_nothing(work, cluster):
    name = cell_of(work, "eager.cpu1")
    target = f"results/cells/{name}/metrics.json"
    # The plugin names rule and cell in both, and a site may rewrite the comment.
    logs = work.folder / f".snakemake/slurm_logs/rule_train_and_keep/{name}"
    logs.mkdir(parents=True)
    comment = f"--comment=rule_train_and_keep_wildcards_{name}"
    try:
        left = [
            find_earlier_jobs(work, cluster, [comment]),
            find_earlier_jobs(
                work, cluster, [f"--output={logs}/%j.log", "--comment=project|\nof a site"]
            ),
        ]
        find_earlier_jobs(work, cluster, [comment], folder="/")
        dry = snakemake(work, "-n", "--force", target).stdout
    finally:
        cluster.run("scancel", "--me")
    assert f"--dependency=afterany:{':'.join(left)}," in dry
    assert "parbench: 1 cell to train" in dry
    assert "dependency" not in snakemake(work, "-n", "--force", target).stdout


@pytest.fixture(scope="module")
def trained(work, cluster):
    """Train two cells whose first submitter was killed; return cells, a job it left, and output."""
    eager, two = cell_of(work, "eager.cpu1"), cell_of(work, "ddp.2x1")
    targets = [f"results/cells/{name}/metrics.json" for name in (eager, two)]

    def submitter(said: str) -> subprocess.Popen:
        with open(work.folder / said, "w") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "snakemake", *PROFILE, *QUICK, *targets],
                cwd=work.folder,
                env={**os.environ, **work.variables},
                stdout=output,
                stderr=output,
            )

    # Until the second one has submitted its jobs, no job starts.
    cluster.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    first = submitter("first.txt")
    query = ["squeue", "--noheader", "--format=%i|%k"]
    while f"_{eager}" not in (jobs := cluster.run(*query)):
        assert first.poll() is None, (work.folder / "first.txt").read_text()
    first.kill()
    first.wait()
    left = next(line.split("|")[0] for line in jobs.splitlines() if line.endswith(f"_{eager}"))
    snakemake(work, "--unlock")
    second = submitter("second.txt")
    while f"--dependency=afterany:{left}" not in work.seen.read_text():
        time.sleep(0.1)
        assert second.poll() is None, (work.folder / "second.txt").read_text()
    cluster.run("scontrol", "update", "PartitionName=main", "State=UP")
    status, said = second.wait(HANG_SECONDS), (work.folder / "second.txt").read_text()
    assert status == 0, said
    return eager, two, left, said


@pytest.mark.whole
def test_jobs_of_a_killed_submitter_are_not_doubled(work, trained):
    eager, two, left, said = trained
    reason = "needs 1x A30, 4 cores, 1000 MiB of memory (partition main has none)"
    assert f"1 cell on a30x1 not run: {reason}" in said
    assert "2 cells to train" in said
    assert f"{eager}: job {left} of an earlier run still exists" in said
    assert f"--dependency=afterany:{left}" in work.seen.read_text()
    # Those of this run; another test cancels jobs of train_and_keep.
    logs = list((work.folder / ".snakemake/slurm_logs/rule_train").rglob("*.log"))
    assert not [log for log in logs if "error" in log.read_text()]
    for name in (eager, two):
        found = json.loads((work.folder / f"results/cells/{name}/metrics.json").read_text())
        assert found["status"] == "ok"
    assert found["environment"]["world_size"] == 2


@pytest.mark.whole
def test_with_the_profile_or_without_nothing_runs_again(work, trained):
    target = f"results/cells/{trained[0]}/metrics.json"
    assert "Nothing to be done" in snakemake(work, "-n", target).stdout
    assert "Nothing to be done" in work.snakemake("-n", *PROFILE[:2], "--", target).stdout


def test_preparation_may_be_a_job(work):
    words = ["-n", "--force", "results/data/other/digest.json"]
    assert "slurm_partition" not in snakemake(work, *words).stdout
    there = snakemake(work, *words, "--config", "slurm={prepare: short}").stdout
    # No longer than that partition allows.
    assert "cpus_per_task=2, runtime=1, slurm_partition=short" in there


def test_the_doctor_shows_each_line_and_what_slurm_makes_of_it(doctor):
    """And submits nothing."""
    assert "--cpus-per-task=1 --open-mode=append  # accepted: " in doctor["cpu1, in use"]
    assert "--cpus-per-task=8 " in doctor["cpu8, in use"]
    assert " limited " in doctor["a30x1, in use"]
    assert "jobs with a /tmp of their own" in doctor["locks"]


@pytest.mark.parametrize(
    "words",
    [["--groups", "train=cells", "--group-components", "cells=9"], ["--slurm-array-jobs", "all"]],
)
def test_jobs_of_several_cells_are_refused_with_the_reason(work, words):
    result = snakemake(work, "-n", *words, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"error: {words[0]}, or this key of a profile: a cell needs a Slurm job" in result.stderr
