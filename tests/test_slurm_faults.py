"""What clusters do to a study, on a real one: whatever ends a cell, its result is the same.

A cell is stopped still (SIGSTOP) when its first checkpoint stands, and goes on when the fault has
reached it: so every fault strikes in the middle of training, on fast machines and slow ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import children
import measure
import training
from workspace import Workspace, small_study

# What differs is the hardware: by its settings for Slurm it can be preempted, or has a minute.
VARIANTS = """
preempted: {strategy: eager, hardware: low1}
cut: {strategy: eager, hardware: short1}
cancelled: {strategy: eager, hardware: cpu1}
pair: {strategy: ddp, hardware: pair}
"""
MODELS = f"swin: {{options: {json.dumps(training.SMALL_SWIN)}}}"
MINE = """
studies: [faults]
checkpoint_seconds: 1
grace_seconds: 5
slurm: {memory_mib: 1000, minutes: 10}
hardware:
  low1: {device: cpu, devices: 1, slurm: {partition: low}}
  short1: {device: cpu, devices: 1, slurm: {minutes: 1}}
  pair: {device: cpu, devices: 1, nodes: 2}
"""
PROFILE = ["--configfile", "mine.yaml", "--profile", "slurm"]
QUICK = ["--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "5"]

# Tells that Slurm was asked, and that it did not answer.
SACCT = """\
#!/bin/sh
echo "$@" >>{seen}
exec {real} "$@"
"""


def wait_for(condition, what: str, seconds: float = 120):
    """The first true value of ``condition``."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        time.sleep(0.05)
    return value


def thaw(ranks) -> None:
    """Let processes go on that were held."""
    for process in ranks:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def die_with_parent() -> None:
    """Have a process that is to be started end with the one that starts it."""
    ctypes.CDLL(None).prctl(children.PR_SET_PDEATHSIG, signal.SIGKILL)


class Study:
    """A work folder with cells on a cluster, and its submitting process."""

    def __init__(self, cluster, folder: Path):
        self.cluster = cluster
        self.work = Workspace(folder / "work")
        (self.work.folder / "studies/faults.yaml").write_text(
            small_study("Faults", MODELS, VARIANTS, epochs=12, images=1437)
        )
        (self.work.folder / "mine.yaml").write_text(MINE)
        self.sacct = folder / "asked"
        (folder / "bin").mkdir()
        (folder / "bin/sacct").write_text(SACCT.format(seen=self.sacct, real=cluster.bin / "sacct"))
        (folder / "bin/sacct").chmod(0o755)
        self.variables = {
            "PATH": f"{folder / 'bin'}:{cluster.environment['PATH']}",
            "PARBENCH_LEASES": str(folder / "leases"),
        }
        said = self.work.run(
            "scripts/cells.py", "--configfile", "mine.yaml", "list", **self.variables
        ).stdout
        names = [line.split()[0] for line in said.splitlines() if line.startswith("swin.")]
        self.cells = {
            variant: Cell(self, next(name for name in names if f".{hardware}." in name))
            for variant, hardware in (
                ("preempted", "low1"),
                ("cut", "short1"),
                ("cancelled", "cpu1"),
                ("pair", "pair"),
            )
        }
        self.said = folder / "said.txt"
        self.submitter: subprocess.Popen | None = None

    def submit(self, *variants: str) -> None:
        """Start the submitting process; it is asked for these cells."""
        targets = [str(self.cells[variant].out) for variant in variants]
        words = [sys.executable, "-m", "snakemake", *PROFILE, *QUICK, *targets]
        with open(self.said, "w") as said:
            self.submitter = subprocess.Popen(
                words,
                cwd=self.work.folder,
                env={**os.environ, **self.variables},
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def end(self, seconds: float = 180) -> tuple[int, str]:
        """The submitter's exit status, and what it said."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.submitter.wait(seconds)
        status = self.submitter.poll()
        self.kill()
        return status, self.said.read_text()

    def kill(self) -> None:
        """End the submitter as a crash of its machine would; its jobs go on."""
        if self.submitter is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.submitter.pid, signal.SIGKILL)
            self.submitter.wait()

    def leave(self) -> None:
        """End all that runs for it."""
        self.kill()
        self.cluster.run("scancel", "--me")


class Cell:
    """One cell of the study."""

    def __init__(self, study: Study, name: str):
        self.study, self.name = study, name
        self.folder = study.work.folder / "results/cells" / name
        self.out = Path("results/cells") / name / "metrics.json"
        self.runs: set[str] = set()  # that trained it
        self.twice: list[set[str]] = []  # those that did so at once
        self.stops: list[dict] = []  # stopped.json of each of them
        self.failures: list[dict] = []  # and failed.json

    def read(self, file: str):
        """A JSON file of its folder; None while there is none."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.folder / file).read_text())

    def look(self) -> None:
        """Take note of what it does now."""
        runs = {state.partition("/node")[0] for state in self.ranks().values()}
        self.runs |= runs
        if len(runs) > 1:
            self.twice.append(runs)
        for file, known in (("stopped.json", self.stops), ("failed.json", self.failures)):
            value = self.read(file)
            if value is not None and value not in known:
                known.append(value)

    def metrics(self) -> dict:
        """Its result, which must be a valid one of this cell."""
        metrics = measure.read_metrics(self.folder / "metrics.json")
        assert metrics["cell"] == self.read("cell.json")
        return metrics

    def ranks(self) -> dict[psutil.Process, str]:
        """Its training processes, and the folder of their run, PARBENCH_STATE."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if "scripts/train.py" in words and any(self.name in word for word in words):
                    state = process.environ().get("PARBENCH_STATE")
                    if state is not None:  # else it is what the cell is compared with
                        found[process] = state
        return found

    def freeze(self) -> dict[psutil.Process, str]:
        """Wait for its first checkpoint, and hold its ranks there."""
        told = f"a checkpoint of {self.name}; {self.study.said}"
        wait_for(lambda: list(self.folder.glob("checkpoints/*.json")), told)
        ranks = self.ranks()
        for process in ranks:
            process.suspend()
        assert ranks
        assert not (self.folder / "metrics.json").exists()
        return ranks

    def freeze_until_stopped(self) -> None:
        """Hold it there until its ranks are asked to stop."""
        threading.Thread(target=self._thaw, args=(self.freeze(),), daemon=True).start()

    def _thaw(self, ranks: dict[psutil.Process, str]) -> None:
        states = [Path(state) for state in ranks.values()]
        while not all((state / "stop").exists() or not state.exists() for state in states):
            time.sleep(0.05)
        thaw(ranks)

    def job(self) -> dict[str, str]:
        """What Slurm says of the job that trains it, or trained it last."""
        number = (self.read("running.json") or self.read("failed.json"))["job"]
        said = self.study.cluster.run("scontrol", "show", "job", str(number), "--oneliner")
        return dict(word.split("=", 1) for word in said.split() if "=" in word)


class Watch(threading.Thread):
    """Takes note of what cells do, as long as it lives."""

    def __init__(self, cells):
        super().__init__(daemon=True)
        self.cells, self.over = cells, threading.Event()
        self.trouble: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.over.wait(0.3):
                for cell in self.cells:
                    cell.look()
        except BaseException as error:  # a watch that died has seen nothing
            self.trouble = error
            raise


@pytest.fixture(scope="module")
def study(cluster, digits, tmp_path_factory):
    """The study, when all has happened to it that happens on clusters."""
    study = Study(cluster, tmp_path_factory.mktemp("faults"))
    watch = Watch(study.cells.values())
    watch.start()
    try:
        happen(study, digits)
        assert watch.trouble is None
        yield study
    finally:
        watch.over.set()
        study.leave()


def happen(study: Study, data: Path) -> None:
    """The faults, in three runs of Snakemake."""
    cluster = study.cluster
    preempted, cut, cancelled, pair = study.cells.values()

    # The first run: a cell is preempted, and then the submitter dies.
    study.submit("preempted", "cut")
    preempted.freeze_until_stopped()
    cut.freeze_until_stopped()
    node = preempted.job()["BatchHost"]
    shown = cluster.run("scontrol", "show", "node", node)
    wanted = 2 - int(re.search(r"CPUAlloc=(\d+)", shown)[1]) + 1  # one more than are free
    words = ["--partition=high", f"--nodelist={node}", f"--cpus-per-task={wanted}"]
    cluster.run("sbatch", *words, "--output=/dev/null", "--chdir=/", "--wrap=sleep 1")
    wait_for(lambda: preempted.failures, "a stop by preemption")
    study.kill()

    # The second: a cell is cancelled, another one's walltime ends.
    study.work.snakemake("--unlock", *PROFILE, **study.variables)
    study.submit("preempted", "cut", "cancelled")
    cancelled.freeze_until_stopped()
    cluster.run("scancel", cancelled.job()["JobId"])
    wait_for(lambda: cancelled.failures, "a stop by scancel")
    wait_for(lambda: cut.failures, "a stop before the end of its walltime")
    # A slow machine may not come to a checkpoint in a minute: it has more when it is run again.
    cluster.run("scontrol", "update", f"JobId={cut.failures[0]['job']}", "TimeLimit=5")
    study.second = study.end()

    # The third: the controller is away, then one of a cell's two nodes loses its slurmd.
    study.submit("cancelled", "pair")
    pair.freeze_until_stopped()
    study.pair_job = pair.job()["JobId"]
    study.sacct.unlink(missing_ok=True)
    cluster.stop("slurmctld")
    with ThreadPoolExecutor(2) as pool:  # the submitter takes its time to ask
        wanted = {cell: pool.submit(uninterrupted, cell, data) for cell in (cut, pair)}
        study.wanted = {cell.name: future.result() for cell, future in wanted.items()}
    wait_for(study.sacct.exists, "a question of the submitter's without an answer")
    cluster.start("slurmctld")
    wait_for(cluster.is_ready, "the controller")
    cluster.kill("n2")
    wait_for(lambda: state_of(cluster, study.pair_job) != "RUNNING", "a lost node")
    cluster.start("n2")
    study.third = study.end()


def uninterrupted(cell: Cell, data: Path) -> dict:
    """What the same training gives where nothing happens: on one node, without Slurm."""
    value = cell.read("cell.json")
    hardware = value["hardware"]
    value["hardware"] = {**hardware, "devices": hardware["nodes"], "nodes": 1}
    folder = cell.study.work.folder / "uninterrupted" / cell.name
    return learned(training.run(value, data, folder)[0])


def learned(metrics: dict) -> dict:
    """What does not depend on time."""
    times = ("seconds", "elapsed_seconds", "samples_per_second")
    history = [{k: v for k, v in e.items() if k not in times} for e in metrics["history"]]
    kept = {k: metrics[k] for k in ("status", "test_accuracy", "confusion")}
    return {**kept, "history": history}


def state_of(cluster, job: str) -> str:
    words = ["--noheader", "--states=all", f"--jobs={job}", "--format=%T"]
    return cluster.run("squeue", *words).strip()


def goes_on_from(cell: Cell, stop: dict) -> bool:
    """Whether the cell went on where that run of it stopped."""
    places = [(place["epoch"], place["step"]) for place in cell.metrics()["resumed_from"]]
    return (stop["epoch"], stop["step"]) in places


def test_a_preempted_cell_goes_on(study):
    cell = study.cells["preempted"]
    assert cell.failures[0]["sentence"].startswith("ended by SIGTERM; a checkpoint at epoch ")
    assert cell.failures[0]["stopped"]  # its job is in the queue again
    assert goes_on_from(cell, cell.stops[0])


def test_a_cell_past_its_walltime_goes_on(study):
    cell = study.cells["cut"]
    said = "stopped before the end of its walltime; a checkpoint at epoch "
    assert cell.failures[0]["sentence"].startswith(said)
    assert cell.failures[0]["stopped"]
    assert goes_on_from(cell, cell.stops[0])


def test_a_cancelled_cell_has_failed_and_goes_on_when_it_is_wanted_again(study):
    cell = study.cells["cancelled"]
    status, said = study.second
    assert status == 1
    assert f"{cell.name}: failed: " in said
    assert not cell.failures[0]["stopped"]
    # Slurm gives it some seconds; where they do not suffice, the checkpoint before is kept.
    assert cell.metrics()["resumed_from"]


def test_a_killed_submitters_jobs_are_taken_over(study):
    """The cells were trained by the jobs of the first run, and nobody else."""
    said = study.second[1]
    for variant in ("preempted", "cut"):
        cell = study.cells[variant]
        job = cell.failures[0]["job"]
        assert f"{cell.name}: job {job} of an earlier run is still there" in said
        assert cell.read("finished.json")["job"] == job
        assert len(cell.runs) == 2  # before and after it was stopped


def test_a_controller_may_be_away(study):
    """The submitter, which got no answer, saw all of its jobs end."""
    status, said = study.third
    assert status == 0, said
    assert said.count(": ok, accuracy ") == 2


def test_a_cell_of_two_nodes_survives_a_slurmd(study):
    status, said = study.third
    cell = study.cells["pair"]
    assert status == 0, said
    assert cell.metrics()["resumed_from"]
    assert str(cell.read("finished.json")["job"]) == study.pair_job
    assert len(cell.runs) == 2


@pytest.mark.parametrize("variant", ["preempted", "cut", "cancelled", "pair"])
def test_whatever_happened_the_result_is_that_of_an_uninterrupted_run(study, variant):
    cell = study.cells[variant]
    like = study.cells["pair" if variant == "pair" else "cut"]
    assert learned(cell.metrics()) == study.wanted[like.name]
    left = {path.name for path in cell.folder.iterdir()}
    assert not left & {"running.json", "failed.json", "stopped.json", "checkpoints"}
    assert not list(cell.folder.glob("state-*"))


def test_no_cell_was_trained_twice_at_once(study):
    assert {cell.name: cell.twice for cell in study.cells.values() if cell.twice} == {}


def test_nothing_is_left_to_do(study):
    targets = [str(cell.out) for cell in study.cells.values()]
    done = study.work.snakemake("-n", *PROFILE, *QUICK, *targets, **study.variables)
    assert "Nothing to be done" in done.stdout


def test_a_full_disk(cluster, tmp_path):
    """Results on a small one, which is full when a checkpoint is to be written."""
    study = Study(cluster, tmp_path)
    results = study.work.folder / "results"
    results.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(results)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no small disk can be mounted: {done.stderr.strip()}")
    cell = study.cells["cancelled"]
    try:
        study.submit("cancelled")
        ranks = cell.freeze()
        with open(results / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        thaw(ranks)
        status, said = study.end()
        assert status == 1
        assert "No space left on device" in said
        assert "metrics.json" not in os.listdir(cell.folder)
        (results / "filler").unlink()
        study.submit("cancelled")
        status, said = study.end()
        assert status == 0, said
        assert cell.metrics()["resumed_from"]
        assert cell.metrics()["status"] == "ok"
    finally:
        study.leave()
        subprocess.run(["umount", "-l", str(results)], check=True)
