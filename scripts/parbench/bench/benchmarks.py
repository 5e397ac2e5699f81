"""The benchmarks: cells and their start, pairs, and the workflow compared with a bare one."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import yaml
from tqdm import tqdm

from parbench import git, machine
from parbench.bench import known_pairs
from parbench.bench.timing import BenchRow, line, ratio, seconds, take_turns
from parbench.cell import Cell
from parbench.cell import read as read_cell
from parbench.errors import ParbenchError
from parbench.files import read_json, write_json
from parbench.runs import records
from parbench.variables import PROGRAM

ROOT = Path(__file__).resolve().parents[3]
# Names that a copy of a checkout does not need.
LEFT_OUT = (".*", "__pycache__", "bundle", "evidence", "final.*", "results", "tests")
BATCH, STEPS = 64, 8  # all of the dataset's 512 images
BARE = "a bare Snakefile"


@dataclass
class Context:
    """What a run of benchmarks uses: a temporary ``folder``, checkouts by name (``this`` first),
    and the number of pairs."""

    folder: Path
    checkouts: dict[str, Path]
    pairs: int


def run(words: list[str], folder: Path) -> None:
    """Run a command in ``folder``. Raises ParbenchError with the end of its output if it fails."""
    # As for users, who have the compiled files of their last run.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    completed = subprocess.run(
        words, cwd=folder, env=environment, stdout=-1, stderr=subprocess.STDOUT, text=True
    )
    if completed.returncode != 0:
        last_lines = "\n".join(completed.stdout.splitlines()[-15:])
        raise ParbenchError(f"{shlex.join(words)}: status {completed.returncode}:\n{last_lines}")


def snakemake(*words: str) -> list[str]:
    """Return a Snakemake command."""
    return [sys.executable, "-m", "snakemake", *words]


def seconds_of(words: list[str], folder: Path) -> float:
    """Run a command in ``folder`` and return the seconds it takes."""
    begun = time.perf_counter()
    run(words, folder)
    return time.perf_counter() - begun


def work_folder(checkout: Path, folder: Path, study: dict) -> Path:
    """Copy ``checkout`` to ``folder``, for two cores, with only ``study``; return ``folder``."""
    shutil.copytree(checkout, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))
    (folder / "studies" / "bench.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    settings = yaml.safe_load((checkout / "config.yaml").read_text(encoding="utf-8"))
    settings |= {"studies": ["bench"], "available": {"cpu": 2, "cuda": {}}, "override": {}}
    settings |= {"deployment": "host"}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    return folder


def bare_workflow(folder: Path, jobs: int) -> Path:
    """Make ``folder`` with the shortest Snakefile that has ``jobs`` jobs, and return it."""
    folder.mkdir()
    (folder / "Snakefile").write_text(
        f"rule all:\n    input: [f'results/{{number}}' for number in range({jobs})]\n"
        "rule train:\n    output: 'results/{cell}'\n    shell: 'touch {output}'\n"
    )
    return folder


def quickstart(checkout: Path, **changes: object) -> dict:
    """Return the study quickstart of ``checkout`` with ``changes``."""
    path = checkout / "studies/quickstart.yaml"
    return {**yaml.safe_load(path.read_text(encoding="utf-8")), **changes}


# ---------------------------------------------------------------- cells

STUDY = f"""
title: bench
description: of make bench
citation: null
dataset: synthetic-32
seeds: [0]
settings: {{epochs: 1, steps: {STEPS}, global_batch: {BATCH}, optimizer: sgd, schedule: constant,
           learning_rate: 0.01, warmup_steps: 2}}
models: {{resnet18: {{}}}}
variants:
  eager: {{strategy: eager, hardware: cpu1}}
  ddp: {{strategy: ddp, hardware: cpu2, baseline: eager}}
tables:
  - {{title: All, variants: [eager, ddp], metrics: [train_seconds]}}
"""


class TimedCells:
    """Cells on random images in a copy of a checkout, which can be trained repeatedly."""

    def __init__(self, checkout: Path, folder: Path, study: str) -> None:
        self.folder = work_folder(checkout, folder, yaml.safe_load(study))
        self.data = self.folder / "results/data/synthetic-32"
        run(snakemake("--cores", "1", "results/data/synthetic-32/digest.json"), self.folder)

    def startup_seconds(self, strategy: str) -> float:
        """Train the cell of ``strategy`` and return the seconds until its first timed step."""
        (cell,) = self.folder.glob(f"results/cells/*.{strategy}.*/cell.json")
        out = cell.with_name("metrics.json")
        arguments = ["--cell", str(cell), "--data", str(self.data), "--out", str(out)]
        run([sys.executable, "scripts/bin/parbench", "launch", *arguments], self.folder)
        return read_json(out)["startup_seconds"]


def start(context: Context) -> list[BenchRow]:
    """Measure the time from the launcher's start to the first timed step, ddp against eager"""
    contenders = {}
    for name, checkout in context.checkouts.items():
        cells = TimedCells(checkout, context.folder / name, STUDY)
        for strategy in ("eager", "ddp"):
            contenders[f"{strategy}, {name}"] = partial(cells.startup_seconds, strategy)
    times = take_turns(contenders, context.pairs)
    rows = [seconds(f"startup_seconds, {name}", pairs) for name, pairs in times.items()]
    what = "start of ddp over that of eager, this"
    return [*rows, ratio(what, times["ddp, this"], times["eager, this"])]


LOOP = """
title: bench
description: of make bench
citation: null
dataset: synthetic-32
seeds: [0]
settings: {epochs: 1, steps: 4, optimizer: sgd, schedule: constant, learning_rate: 0.01}
models: {simple_cnn: {}}
variants:
  batch-64: {strategy: eager, hardware: cpu1, settings: {global_batch: 64}}
  batch-16: {strategy: eager, hardware: cpu1, settings: {global_batch: 16}}
tables:
  - {title: All, variants: [batch-64, batch-16], metrics: [train_seconds]}
"""


def loop(context: Context, steps: int = 200) -> list[BenchRow]:
    """Measure steps a second of the loop, crops and flips included, over a bare one's without"""
    import torch

    from parbench.bench.bare_loop import contenders

    cells, rows = TimedCells(ROOT, context.folder / "this", LOOP), []
    for path in sorted(cells.folder.glob("results/cells/*/cell.json"), reverse=True):
        cell = read_cell(path)
        assert isinstance(cell, Cell)
        if torch.cuda.is_available():
            cell = replace(cell, hardware=replace(cell.hardware, device="cuda"))
        times = take_turns(contenders(cell, cells.data, steps), context.pairs)
        what = f"Simple CNN, batch {cell.training.global_batch}, {cell.hardware.device}"
        rows.append(ratio(f"steps a second, {what}", times["a bare loop"], times["the loop"]))
    return rows


# ---------------------------------------------------------------- pairs


def pairs(context: Context, **changes: object) -> list[BenchRow]:
    """Measure time ratios by pairs: an A/A pair, and one side slowed on purpose over another"""
    runs: dict[float, list[records.PairRun]] = {}
    for measured in restarts(context, known_pairs.study(context.pairs, **changes)):
        runs.setdefault(known_pairs.share_of(measured), []).append(measured)
    return [known_pairs.row(share, runs[share]) for share in sorted(runs)]


def restarts(context: Context, study: dict) -> Iterator[records.PairRun]:
    """Measure all pairs of ``study`` and yield each restart."""
    folder = work_folder(ROOT, context.folder / "this", study)
    known_pairs.add_strategy(folder)
    data = "results/data/synthetic-32"
    run(snakemake("--cores", "1", f"{data}/digest.json"), folder)
    cells = known_pairs.in_rotation(folder / "results/cells")
    for cell in tqdm(cells, unit="restart", disable=not sys.stderr.isatty()):
        out = cell / "metrics.json"
        arguments = ["--cell", str(cell / "cell.json"), "--data", data, "--out", str(out)]
        run([sys.executable, "scripts/bin/parbench", "launch", *arguments], folder)
        measured = records.read(out)
        assert isinstance(measured, records.PairRun)
        yield measured


# ---------------------------------------------------------------- the workflow


def cells5000(context: Context, seeds: int = 500) -> list[BenchRow]:
    """Time the planning of 5,000 cells, 500 seeds of quickstart: parsing and a dry run"""
    return many_cells(context, seeds)


def cells20000(context: Context) -> list[BenchRow]:
    """Time the planning of 20,000 cells, 2,000 seeds of quickstart, likewise"""
    return many_cells(context, 2_000)


def many_cells(context: Context, seeds: int) -> list[BenchRow]:
    """Time a dry run of so many ``seeds`` of quickstart, and of a bare Snakefile of as many jobs"""
    jobs, command, folders = 10 * seeds, snakemake("-n", "--quiet"), {}
    for name, checkout in context.checkouts.items():
        many = quickstart(checkout, seeds=list(range(seeds)))
        folders[name] = work_folder(checkout, context.folder / name, many)
    folders[BARE] = bare_workflow(context.folder / BARE, jobs)
    contenders = {name: partial(seconds_of, command, folder) for name, folder in folders.items()}
    times = take_turns(contenders, context.pairs)
    what = " ".join(command[2:])
    return [seconds(f"{what}, {jobs:,} jobs, {name}", times[name]) for name in times]


BENCHMARKS: dict[str, Callable[[Context], list[BenchRow]]] = {
    "start": start,
    "loop": loop,
    "pairs": pairs,
    "cells5000": cells5000,
    "cells20000": cells20000,
}


def measure(names: Sequence[str], turns: int | None, against: Path | None, out: Path) -> None:
    """Run the benchmarks ``names``, by default all, print their rows and write them to ``out``.

    ``turns``: number of pairs of turns, or of restarts; ``against``: another checkout, measured in
    turns with this one. Raises ParbenchError for wrong arguments or a command that fails.
    """
    if unknown := set(names) - set(BENCHMARKS):
        known = ", ".join(BENCHMARKS)
        raise ParbenchError(f"unknown benchmark {min(unknown)!r}; there are {known}")
    if turns is not None and turns < 1:
        raise ParbenchError(f"--pairs {turns}: at least 1 is needed")
    checkouts = {"this": ROOT}
    if against is not None:
        if not (against / PROGRAM.relative_to(ROOT)).is_file():
            raise ParbenchError(f"--against {against}: not a checkout of parbench 0.2 or newer")
        checkouts["the other"] = against.absolute()
    result = {
        "schema_version": 5,
        "checkouts": {name: _commit(path) for name, path in checkouts.items()},
        "machine": machine.describe(),
        "load": {},
        "rows": [],
    }
    for name in names or BENCHMARKS:
        print(f"{name}: {BENCHMARKS[name].__doc__}", flush=True)
        load_before = os.getloadavg()
        with tempfile.TemporaryDirectory(prefix="parbench-bench-") as folder:
            count = turns or (4 if name == "pairs" else 10)
            rows = BENCHMARKS[name](Context(Path(folder), checkouts, count))
        result["load"][name] = [load_before, os.getloadavg()]
        result["rows"] += [row.result() for row in rows]
        print(*map(line, rows), sep="\n", flush=True)
        write_json(out, result)  # after each benchmark: the run may be stopped
    print(out)


def _commit(checkout: Path) -> str:
    """Return the commit, with ``-dirty`` if files were changed; empty without git."""
    try:
        return git.run(checkout, "describe", "--always", "--dirty", "--abbrev=40")
    except ParbenchError:
        return ""
