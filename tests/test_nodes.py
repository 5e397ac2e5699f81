"""Cells over two nodes of a real Slurm cluster: training, faults, signals.

Their jobs run the launcher as Snakemake's jobs do: in the batch step, with nothing of Slurm's own
variables but the job's number.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import files
import processes
import training

ROOT = Path(__file__).resolve().parent.parent


class Cell:
    """A cell of 2 nodes with one core each, in a folder of its own."""

    def __init__(self, cluster, folder, data, strategy, nodes=2, run=None, **changes):
        self.cluster, self.data = cluster, data
        self.folder = folder / "results" / "cells" / f"test.{strategy}"
        self.value = training.cell(strategy, 1 if nodes > 1 else 2, **changes)
        self.value["id"] = self.folder.name
        self.value["hardware"]["nodes"] = nodes
        self.value["run"] |= run or {}
        self.out = self.folder / "metrics.json"
        files.write_json(self.folder / "cell.json", self.value)

    def submit(self, *options, **environment):
        """Its job's number."""
        words = f"{sys.executable} scripts/launch.py --cell {self.folder}/cell.json"
        words += f" --data {self.data} --out {self.out}"
        kept = "for v in ${!SLURM_@}; do [ $v = SLURM_JOB_ID ] || unset $v; done"
        path = self.folder / "job.sh"
        path.write_text(f"#!/bin/bash\n{kept}\n{words}\n")
        nodes = self.value["hardware"]["nodes"]
        line = ["sbatch", "--parsable", f"--nodes={nodes}", f"--ntasks={nodes}", "--requeue"]
        line += [f"--comment=rule_train_wildcards_{self.value['id']}", "--mem=500"]
        line += [f"--output={self.folder}/slurm.txt", "--open-mode=append", *options, str(path)]
        done = subprocess.run(
            line,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            env={**self.cluster.environment, "PARBENCH_OVERSUBSCRIBE": "1", **environment},
        )
        return int(done.stdout)

    def wait(self, job, seconds=300):
        """Its end; what it said."""
        wait_for(lambda: state(self.cluster, job) in DONE, seconds)
        return (self.folder / "slurm.txt").read_text()

    def metrics(self):
        return json.loads(self.out.read_text())

    def failed(self):
        return json.loads((self.folder / "failed.json").read_text())


DONE = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "")


def state(cluster, job):
    done = subprocess.run(
        ["squeue", "--noheader", "--states=all", "--jobs", str(job), "--format=%T"],
        capture_output=True,
        text=True,
        env=cluster.environment,
    )
    return done.stdout.strip()


def wait_for(condition, seconds=240):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.2)


@pytest.fixture
def cell(cluster, digits, tmp_path, monkeypatch):
    monkeypatch.setenv("PARBENCH_LEASES", str(tmp_path / "leases"))
    made = []

    def make(strategy="ddp", **options):
        made.append(Cell(cluster, tmp_path, digits, strategy, **options))
        return made[-1]

    return make


def local(cell_, folder):
    """The same on one node with two ranks."""
    value = {**cell_.value, "hardware": {**cell_.value["hardware"], "nodes": 1, "devices": 2}}
    return training.run(value, cell_.data, folder)[0]


@pytest.mark.parametrize("strategy", ["ddp", "horovod"])
def test_two_nodes_train_as_two_ranks_of_one(cell, strategy, tmp_path):
    it = cell(strategy)
    job = it.submit()
    said = it.wait(job)
    assert it.out.exists(), said
    one, two = local(it, tmp_path / "local"), it.metrics()
    assert [e["train_loss"] for e in two["history"]] == [e["train_loss"] for e in one["history"]]
    assert two["test_accuracy"] == one["test_accuracy"]
    assert two["environment"]["world_size"] == 2
    assert f"{it.value['id']}: starts on n1, n2" in said
    left = {path.name for path in it.folder.iterdir()}
    assert not left & {"running.json", "failed.json", "checkpoints", f"state-{job}"}
    kept = json.loads((it.folder / "finished.json").read_text())
    assert (kept["job"], kept["metrics"]) == (job, two)


def test_a_rank_that_dies_on_another_node(cell):
    it = cell(epochs=2000)
    job = it.submit()
    wait_for(lambda: list(it.folder.glob(f"state-{job}/node1/rank1.heartbeat")))
    beat = json.loads((it.folder / f"state-{job}" / "node1" / "rank1.heartbeat").read_text())
    os.kill(beat["pid"], signal.SIGKILL)
    said = it.wait(job)
    sentence = "rank 1 of 2 died: killed by signal 9 (SIGKILL)"
    assert f"error: {it.value['id']}: {sentence}" in said
    assert (it.failed()["sentence"], it.failed()["job"]) == (sentence, job)
    assert not it.out.exists()
    wait_for(lambda: not processes.members(str(it.folder / f"state-{job}" / "node0")))


def test_a_node_that_cannot_be_reached_is_named(cell):
    it = cell(run={"interface": "none0", "connect_seconds": 5})
    said = it.wait(it.submit())
    assert "nodes.interface 'none0' has no IPv4 address on node n1" in said
    assert "lo (127.0.0.1)" in it.failed()["sentence"]


def test_without_a_job_of_as_many_nodes(cell):
    it = cell()
    said = it.wait(it.submit("--nodes=1", "--ntasks=1"))
    assert "hardware.nodes is 2, and this is job" in said


def test_a_job_whose_steps_alone_are_asked_to_end(cell):
    """As where Slurm tracks processes by cgroups: nobody below its own processes is told."""
    it = cell(nodes=1, epochs=2000)
    job = it.submit("--cpus-per-task=2")
    log = it.folder / "log.txt"
    # Some seconds into training: its first heartbeat there may be a second old.
    wait_for(lambda: log.exists() and "epoch 40/" in log.read_text())
    steps = ["squeue", "--steps", "--noheader", "--jobs", str(job), "--format=%i"]
    wait_for(lambda: f"{job}.0" in it.cluster.run(*steps).split())
    it.cluster.run("scancel", "--signal=TERM", f"{job}.0")
    assert "ended by SIGTERM; a checkpoint at epoch" in it.wait(job)


def test_a_preempted_job_goes_on_from_its_checkpoint(cell, tmp_path):
    it = cell(epochs=8, train_samples=1437)
    job = it.submit("--partition=low")
    wait_for(lambda: in_epoch(it, job, 2))
    subprocess.run(
        ["sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null"],
        input="#!/bin/sh\nsleep 1\n",
        text=True,
        check=True,
        env=it.cluster.environment,
        cwd=tmp_path,
    )
    wait_for(lambda: (it.folder / "stopped.json").exists())
    kept = json.loads((it.folder / "stopped.json").read_text())
    assert kept["epoch"] >= 2
    said = it.wait(job)
    assert it.out.exists(), said
    (went_on,) = it.metrics()["resumed_from"]
    assert (went_on["epoch"], went_on["step"]) == (kept["epoch"], kept["step"])
    assert (
        it.metrics()["history"][-1]["train_loss"]
        == (local(it, tmp_path / "local")["history"][-1]["train_loss"])
    )


def in_epoch(it, job, epoch):
    try:
        path = it.folder / f"state-{job}" / "node0" / "rank0.heartbeat"
        return json.loads(path.read_text())["epoch"] >= epoch
    except (OSError, ValueError):
        return False


@pytest.mark.parametrize("how", ["scancel", "SIGKILL of the launcher"])
def test_nobody_outlives_the_head(cell, how):
    it = cell(epochs=2000)
    job = it.submit()
    wait_for(lambda: in_epoch(it, job, 2))
    states = [str(it.folder / f"state-{job}{node}") for node in ("", "/node0", "/node1")]
    assert all(processes.members(each) for each in states)
    if how == "scancel":
        subprocess.run(["scancel", str(job)], check=True, env=it.cluster.environment)
    else:
        os.kill(json.loads((it.folder / "running.json").read_text())["pid"], signal.SIGKILL)
    wait_for(lambda: not any(processes.members(each) for each in states))
    # The next run goes on from the checkpoint that was asked for, without waiting for the dead.
    it.value["training"]["epochs"] = 2
    files.write_json(it.folder / "cell.json", it.value)
    again = it.submit()
    said = it.wait(again)
    assert it.out.exists(), said
