"""Cells in jobs of a real Slurm cluster, on one node and on two: training, faults, signals.

Jobs run the launcher as Snakemake's jobs do: in the batch step, with SLURM_JOB_ID as the only one
of Slurm's variables.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict

import psutil
import pytest

import training
from launched import wait_for
from parbench import files
from parbench.cell import Pair
from parbench.launch import devices
from workspace import HANG_SECONDS, ROOT

ENDLESS = 10**6  # epochs of what is ended before


class Cell:
    """A cell of two ranks, on two nodes or on one, in its own folder."""

    def __init__(self, cluster, folder, data, strategy, nodes=2, run=None, **changes):
        self.cluster, self.data = cluster, data
        self.folder = folder / "results" / "cells" / f"test.{strategy}"
        self.value = training.altered(
            training.cell(strategy, 1 if nodes > 1 else 2, **changes),
            id=self.folder.name,
            hardware={"nodes": nodes},
            run=run or {},
        )
        self.out = self.folder / "metrics.json"
        files.write_json(self.folder / "cell.json", self.value.json())

    def submit(self, *options, comment=None, first="", **environment):
        """Submit its job, which runs the shell command ``first``; return the job's ID."""
        words = f"{sys.executable} scripts/bin/parbench launch --cell {self.folder}/cell.json"
        words += f" --data {self.data} --out {self.out}"
        kept = "for v in ${!SLURM_@}; do [ $v = SLURM_JOB_ID ] || unset $v; done"
        path = self.folder / "job.sh"
        path.write_text(f"#!/bin/bash\n{kept}\n{first}\n{words}\n")
        nodes = max(side.hardware.nodes for side in self.value.sides)
        line = ["sbatch", "--parsable", f"--nodes={nodes}", f"--ntasks={nodes}", "--requeue"]
        line += [f"--comment={comment or f'rule_train_wildcards_{self.value.id}'}", "--mem=500"]
        logs = self.folder / f"rule_train_and_keep/{self.value.id}" if comment else self.folder
        logs.mkdir(parents=True, exist_ok=True)
        self.said = logs / "slurm.txt"
        line += [f"--output={self.said}", "--open-mode=append", *options, str(path)]
        done = subprocess.run(
            line,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            env={**self.cluster.environment, **environment},
        )
        return int(done.stdout)

    def wait(self, job):
        """Wait for its end; return its output."""
        wait_for(lambda: state(self.cluster, job) in DONE)
        return self.said.read_text()

    def rank(self, job, number):
        """Return a rank's heartbeat, once it trains."""
        beats = []
        wait_for(lambda: beats.extend(self._beats(number)) or beats)
        return beats[0]

    def _beats(self, number):
        for path in self.folder.glob(f"parbench-*/*/rank{number}.heartbeat"):
            beat = json.loads(path.read_text())
            if beat["epoch"] >= 2:
                yield beat

    def launcher(self):
        """Return the process of its launcher."""
        words = {"launch", f"{self.folder}/cell.json"}
        every = psutil.process_iter(["cmdline"])
        (found,) = [one for one in every if words <= set(one.info["cmdline"] or ())]
        return found

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


@pytest.fixture
def cell(cluster, digits, tmp_path, monkeypatch):
    monkeypatch.setenv("PARBENCH_LOCKS", str(tmp_path / "locks"))
    made = []

    def make(strategy="ddp", **options):
        made.append(Cell(cluster, tmp_path, digits, strategy, **options))
        return made[-1]

    return make


def local(cell_, folder):
    """Train the same on one node with two ranks; return its metrics."""
    value = training.altered(cell_.value, hardware={"nodes": 1, "devices": 2})
    return training.run(value, cell_.data, folder)[0]


@pytest.mark.parametrize("strategy", ["ddp", "horovod"])
def test_two_nodes_train_as_two_ranks_of_one(cell, strategy, tmp_path):
    it = cell(strategy)
    said = it.wait(it.submit())
    assert it.out.exists(), said
    one, two = local(it, tmp_path / "local"), it.metrics()
    assert [e["train_loss"] for e in two["history"]] == [e["train_loss"] for e in one["history"]]
    assert two["test_accuracy"] == one["test_accuracy"]
    assert two["environment"]["world_size"] == 2
    assert f"{it.value.id}: starts on n1, n2" in said
    left = {path.name for path in it.folder.iterdir()}
    assert not {name for name in left if name.startswith(("failed", "checkpoints", "run-"))}


@pytest.fixture
def pair(cell):
    """Return a pair with one side on one node and one on two."""
    it = cell()
    eager = training.altered(training.cell(), run=asdict(it.value.run))
    it.value = Pair(it.value.id, 0, (eager, it.value))
    files.write_json(it.folder / "cell.json", it.value.json())
    return it


def test_a_side_on_one_node_takes_turns_with_one_on_two(pair):
    said = pair.wait(pair.submit())
    assert pair.out.exists(), said
    metrics = pair.metrics()
    assert [each["side"] for each in metrics["slices"]][:4] == [0, 1, 1, 0]
    assert [each["environment"]["world_size"] for each in metrics["sides"]] == [1, 2]
    assert metrics["shared"]  # one core of two on each node
    assert f"{pair.value.id}: starts on n1, n2" in said


SRUN = """\
#!/bin/sh
mkdir {folder}/asked 2>/dev/null || exec {real} "$@"
echo "srun: error: Unable to confirm allocation for job $SLURM_JOB_ID:" \\
    "Unable to contact slurm controller (connect failure)" >&2
exit 1
"""


def test_a_controller_that_does_not_answer_costs_a_job_time_alone(cell, tmp_path):
    """It is silent when the launcher asks about its job, and when srun starts the ranks."""
    it, seen = cell(nodes=1), tmp_path / "bin"
    seen.mkdir()
    (seen / "srun").write_text(SRUN.format(folder=tmp_path, real=it.cluster.bin / "srun"))
    (seen / "srun").chmod(0o755)
    controller = psutil.Process(int((it.cluster.folder / "slurmctld.pid").read_text()))
    go = f"export PATH={seen}:$PATH; until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    job = it.submit("--cpus-per-task=2", first=f"touch {tmp_path}/runs; {go}")
    wait_for((tmp_path / "runs").exists)
    controller.suspend()
    try:
        (tmp_path / "go").touch()
        wait_for(lambda: "Slurm's controller does not answer" in it.said.read_text())
    finally:
        controller.resume()
    said = it.wait(job)
    assert it.out.exists(), said
    assert said.count("Slurm's controller does not answer") == 2


def test_a_rank_that_dies_on_another_node_is_named(cell):
    it = cell(epochs=ENDLESS)
    job = it.submit()
    os.kill(it.rank(job, 1)["pid"], signal.SIGKILL)
    said = it.wait(job)
    sentence = "rank 1 of 2 died on n2: Killed"
    assert f"error: {it.value.id}: {sentence}" in said
    assert it.failed()["sentence"] == sentence
    assert not it.out.exists()
    wait_for(lambda: not alive(it))


def test_a_node_that_cannot_be_reached_is_named(cell):
    it = cell(run={"interface": "none0", "connect_seconds": 5})
    said = it.wait(it.submit())
    assert "nodes.interface 'none0' has no IPv4 address on node n1" in said
    assert "lo (127.0.0.1)" in it.failed()["sentence"]


def test_without_a_job_of_as_many_nodes(cell):
    it = cell()
    said = it.wait(it.submit("--nodes=1", "--ntasks=1"))
    assert "hardware.nodes is 2, and this is job" in said


def test_a_step_that_alone_is_asked_to_end_keeps_a_checkpoint(cell):
    """As where Slurm tracks processes by cgroups: it signals none below its own processes."""
    it = cell(nodes=1, epochs=ENDLESS)
    job = it.submit("--cpus-per-task=2")
    log = it.folder / "log.txt"
    wait_for(lambda: log.exists() and "epoch 4/" in log.read_text())
    it.cluster.run("scancel", "--signal=TERM", f"{job}.0")
    assert "ended by SIGTERM; a checkpoint at epoch" in it.wait(job)


def test_a_job_goes_on_before_the_end_of_its_walltime(cell):
    it = cell(epochs=ENDLESS, run={"grace_seconds": HANG_SECONDS})
    # The site has rewritten the comment.
    job = it.submit("--time=1-0", comment="project=1 JobState=FAILED")
    it.rank(job, 0)
    it.value = training.altered(it.value, training={"epochs": 2})  # of the next run
    files.write_json(it.folder / "cell.json", it.value.json())
    it.launcher().send_signal(signal.SIGALRM)  # as the kernel does before that end
    said = it.wait(job)
    assert "stopped before the end of its walltime; a checkpoint at epoch" in said
    assert f"asks Slurm to run job {job} again" in said
    assert it.out.exists(), said


def test_a_preempted_job_goes_on_to_the_same_weights(cell, tmp_path):
    """It is held in the write of its third checkpoint until it is preempted."""
    it = cell(epochs=4, run={"checkpoint_seconds": 1e-6})
    holds = {"PYTHONPATH": f"{ROOT}/tests/dying", "HOLDS": "3 /checkpoints/"}
    job = it.submit("--partition=low", TMPDIR=str(tmp_path), **holds)
    wait_for((tmp_path / "held").exists)
    line = ["sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null"]
    it.cluster.run(*line, "--chdir=/", "--wrap=sleep 1")
    stop = "parbench-*/*/stop"
    wait_for(lambda: any(it.folder.glob(stop)) or state(it.cluster, job) != "RUNNING")
    (tmp_path / "go").touch()
    said = it.wait(job)
    assert it.out.exists(), said
    assert it.metrics()["resumed_from"]
    undisturbed = local(it, tmp_path / "undisturbed")
    assert training.learned(it.metrics()) == training.learned(undisturbed)


def test_a_job_preempted_before_its_first_checkpoint_runs_again(cell):
    """Slurm warns the steps of a job first: the launcher is one, as in Snakemake's jobs."""
    it = cell(nodes=1)
    everything = training.cell(devices=len(os.sched_getaffinity(0)))
    with devices.lock_devices(everything):
        step = "srun --ntasks=1 --cpus-per-task=2 \\"  # the launcher follows
        job = it.submit("--partition=low", "--cpus-per-task=2", first=step)
        wait_for(lambda: it.said.exists() and "waiting for 2 of core-" in it.said.read_text())
        line = ["sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null"]
        it.cluster.run(*line, "--chdir=/", "--wrap=sleep 1")
        wait_for(lambda: "Restarts=1 " in it.cluster.run("scontrol", "show", "job", str(job)))
    said = it.wait(job)
    assert it.out.exists(), said


@pytest.mark.parametrize("how", ["scancel", "SIGKILL of the launcher"])
def test_nobody_outlives_the_launcher(cell, how):
    it = cell(epochs=ENDLESS)
    job = it.submit()
    parent = psutil.Process(it.rank(job, 0)["pid"])
    assert alive(it) >= 2
    if how == "scancel":
        it.cluster.run("scancel", str(job))
    else:
        it.launcher().kill()
    wait_for(lambda: not parent.is_running() and not alive(it))
    # The next run continues, without waiting for the dead one.
    it.value = training.altered(it.value, training={"epochs": 2})
    files.write_json(it.folder / "cell.json", it.value.json())
    said = it.wait(it.submit())
    assert it.out.exists(), said


def alive(it):
    """Return how many processes of the cell's runs are alive."""
    found = 0
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            program = {"train", "turns"} & set(words)
            found += bool(program) and f"{it.folder}/cell.json" in words
        except psutil.Error:
            continue
    return found
