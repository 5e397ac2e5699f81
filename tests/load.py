"""Many short cells through a Slurm cluster of this machine's own: `make slurm-load`.

Shows that no cell is lost and none is trained twice, how much memory the submitting process takes,
and how often it asks Slurm. `ARGS="--cells 30"` runs fewer.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.append(str(Path(__file__).resolve().parent.parent / "scripts"))  # as pytest does

import measure
from children import guarded
from cluster import Cluster, ClusterError
from errors import ParbenchError
from workspace import Workspace, small_study

CELLS = 300
LOOK_SECONDS = 0.5  # between two looks at the submitter's memory

# What costs a cell here is not its training: starting up is most of it. So its model is as small as
# can be, needs no torchvision, and writes down that it is trained.
MODEL = '''\
"""One layer."""

import os
from pathlib import Path

OPTIONS: dict = {}
SMALL: dict = {}


def cuts(stages, options):
    return []


def build(num_classes, image_size, options):
    from torch import nn

    if "PARBENCH_STATE" in os.environ:  # a cell, and not its certificate
        with open(Path(__file__).parents[2] / "trainings.txt", "a") as file:
            file.write("one\\n")
    return nn.Sequential(nn.Flatten(1), nn.Linear(3 * image_size**2, num_classes))
'''
MINE = """
studies: [load]
override: {{load: {{seeds: {seeds}}}}}
slurm: {{memory_mib: 500, minutes: 10}}
"""
TARGET = "results/tables/load.csv"

# Slurm's programs that ask the controller, or give it work. Those of a cell's job have its number.
PROGRAMS = ("sbatch", "sacct", "sacctmgr", "scontrol", "sinfo", "squeue", "sshare")
PROGRAM = """\
#!/bin/sh
echo "$(date +%s.%N) {name} ${{SLURM_JOB_ID:--}} $*" >>'{seen}'
exec {real} "$@"
"""


@dataclass(frozen=True)
class Call:
    """A program of Slurm that was run; ``job``: by which job, None: by the submitter."""

    time: float
    program: str
    job: str | None
    words: str


@dataclass(frozen=True)
class Outcome:
    """What a run of the load came to."""

    cells: list[str]
    seconds: float
    memory: int  # the most bytes of the submitter and its children, each counted in full
    calls: list[Call]
    trainings: int
    jobs: dict[str, int]  # of each cell with a valid result, the job that made it

    @property
    def lost(self) -> list[str]:
        """Cells without a valid result."""
        return [cell for cell in self.cells if cell not in self.jobs]

    @property
    def submitted(self) -> int:
        """Jobs given to Slurm."""
        return sum(call.program == "sbatch" for call in self.calls)

    @property
    def looks(self) -> list[float]:
        """When the submitter asked for the states of its jobs."""
        asked = ("squeue", "sacct")
        return [
            call.time
            for call in self.calls
            if call.job is None and call.program in asked and "--name" in call.words
        ]

    @property
    def shortest_gap(self) -> float:
        """Seconds between two such questions, at least."""
        return min((b - a for a, b in itertools.pairwise(self.looks)), default=float("inf"))

    @property
    def questions(self) -> Counter[str]:
        """All that the submitter asked, by program."""
        return Counter(c.program for c in self.calls if c.job is None and c.program != "sbatch")

    @property
    def table(self) -> str:
        """For people."""
        minutes = self.seconds / 60
        of_jobs = sum(call.job is not None for call in self.calls)
        asked = ", ".join(f"{count} {name}" for name, count in sorted(self.questions.items()))
        looks = f"{len(self.looks)}, {self.shortest_gap:.1f} s apart or more"
        rows = {
            "cells": f"{len(self.cells)}, lost: {len(self.lost)}",
            "jobs": f"{self.submitted}, trainings: {self.trainings}",
            "wall time": f"{self.seconds:.0f} s, {len(self.cells) / minutes:.1f} cells a minute",
            "memory of the submitter": f"{self.memory / 2**20:.0f} MiB at most, with its children",
            "its questions": f"{asked}; {self.questions.total() / minutes:.1f} a minute",
            "of them for jobs' states": looks,
            "questions of a cell's job": f"{of_jobs / len(self.cells):.1f}",
        }
        return "\n".join(f"{name:<26} {value}" for name, value in rows.items())


def run(cluster: Cluster, folder: Path, count: int) -> Outcome:
    """Run ``count`` cells of 100 images each in ``folder``, with the profile as it is."""
    work = Workspace(folder / "work")
    (work.folder / "scripts" / "models" / "layer.py").write_text(MODEL)
    study = small_study("Load", "layer: {}", "eager: {strategy: eager, hardware: cpu1}")
    (work.folder / "studies" / "load.yaml").write_text(study)
    (work.folder / "mine.yaml").write_text(MINE.format(seeds=list(range(count))))
    seen = folder / "calls.txt"
    programs = folder / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        real = cluster.bin / name
        if real.exists():
            path = programs / name
            path.write_text(PROGRAM.format(name=name, seen=seen, real=real))
            path.chmod(0o755)
    environment = {**cluster.environment, "PATH": f"{programs}:{cluster.environment['PATH']}"}
    words = ["-m", "snakemake", "--profile", "slurm", "--configfile", "mine.yaml", "--", TARGET]
    started, memory = time.monotonic(), 0
    with open(folder / "output.txt", "w", encoding="utf-8") as output:
        submitter = psutil.Popen(
            [sys.executable, *words],
            cwd=work.folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        with guarded(submitter.kill):
            while submitter.poll() is None:
                memory = max(memory, _memory(submitter))
                time.sleep(LOOK_SECONDS)
    seconds = time.monotonic() - started
    if submitter.returncode != 0:
        raise ParbenchError(f"the run failed:\n{(folder / 'output.txt').read_text()}")
    trainings = (work.folder / "trainings.txt").read_text().splitlines()
    return Outcome(
        cells=_planned(work.folder),
        seconds=seconds,
        memory=memory,
        calls=_calls(seen),
        trainings=len(trainings),
        jobs=_finished(work.folder),
    )


def _memory(process: psutil.Process) -> int:
    """Bytes of a process and all below it; what they share is counted for each.

    Not the one that computes the certificate: like images and datasets that is made once, where
    `slurm.prepare` says.
    """
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "scripts/equivalence.py" not in each.cmdline():
                    total += each.memory_info().rss
    return total


def _planned(folder: Path) -> list[str]:
    plan = json.loads((folder / "results" / "plan" / "load.json").read_text())
    return [cell for group in plan["groups"] for cell in group["cells"]]


def _finished(folder: Path) -> dict[str, int]:
    """Cells with a valid result, which is the one that their job reported; by which job."""
    found = {}
    for path in (folder / "results" / "cells").glob("*/metrics.json"):
        metrics = measure.read_metrics(path)
        kept = json.loads(path.with_name("finished.json").read_text())
        whole = metrics["status"] == "ok" and metrics["cell"]["id"] == path.parent.name
        if whole and kept["metrics"] == metrics:
            found[path.parent.name] = kept["job"]
    return found


def _calls(seen: Path) -> list[Call]:
    calls = []
    for line in seen.read_text().splitlines():
        moment, program, job, words = line.split(" ", 3)
        calls.append(Call(float(moment), program, None if job == "-" else job, words))
    return sorted(calls, key=lambda call: call.time)


def main() -> int:
    """Run the load on a cluster of its own, and print what it came to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cells", type=int, default=CELLS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        cluster = Cluster(Path(folder, "slurm"))
        with guarded(cluster.down):
            try:
                cluster.up()
                outcome = run(cluster, Path(folder), arguments.cells)
            except (ClusterError, ParbenchError) as error:
                print(f"error: {error}", file=sys.stderr)
                return 2
            finally:
                cluster.down()
    print(outcome.table)
    once = outcome.submitted == outcome.trainings == len(outcome.cells)
    return 0 if once and not outcome.lost else 1


if __name__ == "__main__":
    sys.exit(main())
