"""Run many short cells through a simulated Slurm cluster: is any lost, does any run twice?

`make rehearsal` prints the answers, a job's processor time before its cell starts, and what
submitting costs. All nodes share this machine's cores: its minutes say nothing about a real
cluster.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from cluster import Cluster
from workspace import Workspace, small_study

# Prepended to launch.py: logs the cell, its job and the processor seconds the job has spent.
COUNT = """\
import os, pathlib, sys, psutil
job, spent = os.environ["SLURM_JOB_ID"], 0.0
for each in psutil.process_iter():
    try:
        if each.environ().get("SLURM_JOB_ID") == job:
            spent += sum(each.cpu_times()[:4])
    except psutil.Error:
        pass
cell = pathlib.Path(sys.argv[sys.argv.index("--cell") + 1]).parent.name
with open("started.txt", "a") as file:
    file.write(f"{cell} {job} {spent}\\n")
"""


def work_folder(folder: Path, planned: int) -> Workspace:
    """Return a copy of the project whose only study has ``planned`` cells."""
    work = Workspace(folder)
    study = small_study("Rehearsal", "cnn: {}", "eager: {strategy: eager, hardware: cpu1}")
    seeds = f"seeds: {list(range(planned))}"
    (folder / "studies/rehearsal.yaml").write_text(study.replace("seeds: [0]", seeds))
    (folder / "mine.yaml").write_text("studies: [rehearsal]\nslurm: {minutes: 60}\n")
    launcher = folder / "scripts/parbench/commands/called/launch.py"
    launcher.write_text(COUNT + launcher.read_text())
    return work


def submitted(work: Workspace, cluster: Cluster, cells: list[str]) -> str:
    """Run ``cells``; return a sentence on what submitting them cost."""
    targets = [f"results/cells/{cell}/metrics.json" for cell in cells]
    words = ["-m", "snakemake", *targets, "--configfile", "mine.yaml", "--profile", "slurm"]
    begun = time.monotonic()
    with open(work.folder / "said.txt", "wb") as said:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=work.folder,
            env=cluster.environment,
            stdout=said,
            stderr=said,
        )
        _, status, used = os.wait4(process.pid, 0)
    if status:
        print((work.folder / "said.txt").read_text()[-3000:], file=sys.stderr)
    spent = used.ru_utime + used.ru_stime
    return (
        f"{spent:.0f} s of processor time, {used.ru_maxrss / 1024:.0f} MiB, "
        f"in {(time.monotonic() - begun) / 60:.1f} minutes"
    )


def told(work: Workspace, cluster: Cluster, cells: list[str]) -> bool:
    """Print what became of ``cells``; return whether each was trained once."""
    results = work.folder / "results/cells"
    lost = [cell for cell in cells if not (results / cell / "metrics.json").exists()]
    started = [line.split() for line in (work.folder / "started.txt").read_text().splitlines()]
    twice = [cell for cell, count in Counter(cell for cell, _, _ in started).items() if count > 1]
    jobs = cluster.completed.read_text()
    states = Counter(re.findall(r" JobState=(\S+)", jobs))
    nodes = set(re.findall(r" NodeList=(\S+)", jobs))
    spent = sorted(float(seconds) for _, _, seconds in started)
    print(f"{len(cells)} cells: {len(lost)} lost, {len(twice)} started twice {lost + twice}")
    print(f"Slurm: {sum(states.values())} jobs on {len(nodes)} nodes: {dict(states)}")
    print(
        f"a job before its cell: {statistics.median(spent):.2f} s of processor time "
        f"({spent[0]:.2f} to {spent[-1]:.2f})"
    )
    return not lost and not twice and states == {"COMPLETED": len(cells)}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=300, help="that run (300)")
    parser.add_argument("--planned", type=int, help="cells of the study, of which those run")
    parser.add_argument("--nodes", type=int, default=16, help="of the cluster (16)")
    given = parser.parse_args()
    cluster = Cluster(given.nodes)
    with tempfile.TemporaryDirectory(prefix="parbench-rehearsal-") as folder:
        try:
            cluster.up()
            work = work_folder(Path(folder) / "work", given.planned or given.cells)
            listed = work.parbench("cells", "--configfile", "mine.yaml").stdout
            cells = re.findall(r"^cnn\.\S+", listed, re.M)[: given.cells]
            print("submitting:", submitted(work, cluster, cells), flush=True)
            return 0 if told(work, cluster, cells) else 1
        finally:
            cluster.down()


if __name__ == "__main__":
    sys.exit(main())
