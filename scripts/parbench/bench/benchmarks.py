"""The benchmarks: cells, their start, pairs, and the workflow against a bare one."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import yaml
from tqdm import tqdm

from parbench import machine
from parbench.bench import known_pairs
from parbench.bench.timing import BenchRow, Pairs, means, ratio, take_turns
from parbench.cell import read as read_cell
from parbench.errors import ParbenchError
from parbench.files import read_json
from parbench.launch import devices
from parbench.runs import records
from parbench.training.program import Program
from parbench.versus import measuring

ROOT = Path(__file__).resolve().parents[3]
# What a copy of a checkout does not need.
LEFT_OUT = (".*", "__pycache__", "bundle", "evidence", "final.*", "results", "tests")
BATCH, STEPS = 64, 8  # all of the dataset's 512 images
BARE = "a bare Snakefile"


@dataclass
class Context:
    """One call's temporary ``folder``, checkouts by name (``this`` first) and number of pairs."""

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
    """Make ``folder`` with the shortest Snakefile of so many ``jobs``, and return it."""
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
models: {{resnet50: {{}}, resnet18: {{}}}}
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

    def train(self, model: str, strategy: str, key: str) -> float:
        """Train a cell and return the number ``key`` of its metrics.json."""
        (cell,) = self.folder.glob(f"results/cells/{model}.{strategy}.*/cell.json")
        out = cell.with_name("metrics.json")
        arguments = ["--cell", str(cell), "--data", str(self.data), "--out", str(out)]
        run([sys.executable, "scripts/launch.py", *arguments], self.folder)
        return read_json(out)[key]


def in_turns(context: Context, model: str, key: str) -> tuple[dict[str, Pairs], list[BenchRow]]:
    """Measure ``key``, in seconds, for the eager and ddp cells of ``model`` in all checkouts;
    return it by "<strategy>, <checkout>", and as rows.
    """
    contenders = {}
    for name, checkout in context.checkouts.items():
        cells = TimedCells(checkout, context.folder / name, STUDY)
        for strategy in ("eager", "ddp"):
            contenders[f"{strategy}, {name}"] = partial(cells.train, model, strategy, key)
    times = take_turns(contenders, context.pairs)
    return times, [BenchRow(f"{key}, {name}", "s", means(pairs)) for name, pairs in times.items()]


def train(context: Context) -> list[BenchRow]:
    """Measure ResNet-50's training time, eager and ddp on 2 ranks, against the other checkout's"""
    seconds, rows = in_turns(context, "resnet50", "train_seconds")
    for strategy in ("eager", "ddp"):
        if other_times := seconds.get(f"{strategy}, the other"):
            what = f"images a second, {strategy}, over the other"
            rows.append(ratio(what, other_times, seconds[f"{strategy}, this"]))
    return rows


def start(context: Context) -> list[BenchRow]:
    """Measure the time from the launcher's start to the first timed step, ddp against eager"""
    seconds, rows = in_turns(context, "resnet18", "startup_seconds")
    what = "start of ddp over that of eager, this"
    return [*rows, ratio(what, seconds["ddp, this"], seconds["eager, this"])]


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
        if torch.cuda.is_available():
            cell = replace(cell, hardware=replace(cell.hardware, device="cuda"))
        times = take_turns(contenders(cell, cells.data, steps), context.pairs)
        what = f"Simple CNN, batch {cell.training.global_batch}, {cell.hardware.device}"
        rows.append(ratio(f"steps a second, {what}", times["a bare loop"], times["the loop"]))
    return rows


def peers(context: Context, minutes: float = 5.0) -> list[BenchRow]:
    """Measure our loop's speed over that of loops that people use, on one core, as in `versus`, and
    one of these beside itself and beside itself slowed by 3 %."""
    cells = TimedCells(ROOT, context.folder / "this", LOOP)
    paths = cells.folder.glob("results/cells/*/cell.json")
    path = next(each for each in paths if read_cell(each).training.global_batch == BATCH)
    script = Path(__file__).with_name("peer.py")
    (core, *_), environment = machine.usable_cores(), {"PYTHONPATH": str(ROOT / "scripts")}

    def program(way: str) -> Program:
        command = shlex.join([sys.executable, str(script), way, str(path), str(cells.data)])
        return Program(way, command, environment, context.folder / f"{way}.log", patience=600)

    def compared(a: str, b: str, what: str) -> list[BenchRow]:
        found = measuring.compare(program(a), program(b), minutes, lambda _: None)
        equal = [f"{a} beside itself"] if measuring.of(found, True).restarts else []
        return [
            BenchRow(each, "x", measuring.of(found, each != what).series.points)
            for each in (what, *equal)
        ]

    before = os.sched_getaffinity(0)
    with devices.whole([core], "bench"):
        os.sched_setaffinity(0, [core])  # the programs inherit it
        rows = [
            row
            for way in ("loader", "lightning", "accelerate")
            for row in compared(way, "parbench", f"speed of our loop over that of {way}")
        ]
        rows += compared("lightning-slowed", "lightning", "speed of Lightning over itself, slowed")
    os.sched_setaffinity(0, before)
    return rows


# ---------------------------------------------------------------- pairs


def pairs(context: Context, **changes: object) -> list[BenchRow]:
    """Measure time ratios by pairs: of equal sides, and of one slowed on purpose over another"""
    rows: dict[float, known_pairs.PairRow] = {}
    for measured in restarts(context, known_pairs.study(context.pairs, **changes)):
        share = known_pairs.share_of(measured)
        rows.setdefault(share, known_pairs.row(share)).add(measured)
    return [rows[share] for share in sorted(rows)]


def cores(context: Context, **changes: object) -> list[BenchRow]:
    """Measure the share of its cores that each strategy's own processes do not account for"""
    rows: dict[str, BenchRow] = {}
    for measured in restarts(context, known_pairs.each_strategy(context.pairs) | changes):
        name = measured.cell.sides[0].strategy.name
        row = rows.setdefault(name, BenchRow(f"used by other programs, {name}", "share", []))
        row.values.append(known_pairs.unexplained(measured))
    return list(rows.values())


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
        run([sys.executable, "scripts/launch.py", *arguments], folder)
        yield records.read(out)


# ---------------------------------------------------------------- the workflow


def planned(
    context: Context, command: list[str], folders: dict[str, Path], jobs: int
) -> list[BenchRow]:
    """Time ``command`` in each of ``folders``, and in one with a bare Snakefile of ``jobs``."""
    bare = bare_workflow(context.folder / BARE, jobs)
    if jobs == 1:  # nothing is left to do, as in the other folders
        run(snakemake("--cores", "1"), bare)
    contenders = {
        name: partial(seconds_of, command, folder)
        for name, folder in {**folders, BARE: bare}.items()
    }
    times = take_turns(contenders, context.pairs)
    what = " ".join(command[2:])
    return [
        BenchRow(f"{what}, {jobs:,} jobs, {name}", "s", means(measured))
        for name, measured in times.items()
    ]


def study(context: Context, **changes: object) -> list[BenchRow]:
    """Measure core-seconds that quickstart's cells take to start and train, then `snakemake -n`"""
    rows, folders = [], {}
    for name, checkout in context.checkouts.items():
        folder = work_folder(checkout, context.folder / name, quickstart(checkout, **changes))
        run(snakemake("--quiet"), folder)
        found = [read_json(path) for path in folder.glob("results/cells/*/metrics.json")]
        for key in ("startup_seconds", "train_seconds"):
            trained = [result for result in found if "sides" not in result]
            spent = sum(
                (result[key] or 0) * result["cell"]["hardware"]["devices"] for result in trained
            )
            rows.append(BenchRow(f"{key} of {len(trained)} cells, {name}", "core-s", [spent]))
        folders[name] = folder
    return rows + planned(context, snakemake("-n"), folders, 1)


def cells5000(context: Context, seeds: int = 500) -> list[BenchRow]:
    """Time the planning of 5,000 cells, 500 seeds of quickstart: parsing and a dry run"""
    return many_cells(context, seeds)


def cells20000(context: Context) -> list[BenchRow]:
    """Time the planning of 20,000 cells, 2,000 seeds of quickstart, likewise"""
    return many_cells(context, 2_000)


def many_cells(context: Context, seeds: int) -> list[BenchRow]:
    """Time the planning of so many ``seeds`` of quickstart."""
    folders = {}
    for name, checkout in context.checkouts.items():
        many = quickstart(checkout, seeds=list(range(seeds)))
        folders[name] = work_folder(checkout, context.folder / name, many)
    return planned(context, snakemake("-n", "--quiet"), folders, 10 * seeds)


BENCHMARKS: dict[str, Callable[[Context], list[BenchRow]]] = {
    "train": train,
    "start": start,
    "loop": loop,
    "peers": peers,
    "pairs": pairs,
    "cores": cores,
    "quickstart": study,
    "cells5000": cells5000,
    "cells20000": cells20000,
}
