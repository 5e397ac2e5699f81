"""What is measured: cells, their start, the workflow beside a bare one."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from parbench.bench.turns import Pairs, Row, means, ratio, take_turns
from parbench.errors import ParbenchError
from parbench.files import read_json

ROOT = Path(__file__).resolve().parents[3]
# Of a checkout, what a copy does not need.
LEFT_OUT = (".*", "__pycache__", "bundle", "evidence", "final.*", "results", "tests")
BATCH, STEPS = 64, 8  # all of the dataset's 512 images
BARE = "a bare Snakefile"


@dataclass
class Context:
    """Of one call: a temporary ``folder``, checkouts by name (``this`` first), how many pairs."""

    folder: Path
    checkouts: dict[str, Path]
    pairs: int


def run(words: list[str], folder: Path) -> str:
    """Run a command in ``folder``; what it printed. ParbenchError with its end when it fails."""
    # As it is for users: compiled files of the last run are there.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    with subprocess.Popen(
        words, cwd=folder, env=environment, stdout=-1, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output = process.communicate()[0]
        finally:  # also when this program is asked to end
            process.terminate()
    if process.returncode != 0:
        last = "\n".join(output.splitlines()[-15:])
        raise ParbenchError(f"{shlex.join(words)}: status {process.returncode}:\n{last}")
    return output


def snakemake(*words: str) -> list[str]:
    """A command of Snakemake."""
    return [sys.executable, "-m", "snakemake", *words]


def seconds_of(words: list[str], folder: Path) -> float:
    """Seconds that a command takes."""
    begun = time.perf_counter()
    run(words, folder)
    return time.perf_counter() - begun


def work_folder(checkout: Path, folder: Path, study: dict) -> Path:
    """A copy of ``checkout`` in ``folder`` with ``study`` as its only one, for two cores."""
    shutil.copytree(checkout, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))
    (folder / "studies" / "bench.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    settings = yaml.safe_load((checkout / "config.yaml").read_text(encoding="utf-8"))
    settings |= {"studies": ["bench"], "available": {"cpu": 2, "cuda": {}}, "override": {}}
    settings |= {"deployment": "host"}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    return folder


def bare_workflow(folder: Path, jobs: int) -> Path:
    """A folder with the shortest Snakefile of as many ``jobs``."""
    folder.mkdir()
    (folder / "Snakefile").write_text(
        f"rule all:\n    input: [f'results/{{number}}' for number in range({jobs})]\n"
        "rule train:\n    output: 'results/{cell}'\n    shell: 'touch {output}'\n"
    )
    return folder


def quickstart(checkout: Path, **changes: object) -> dict:
    """The study quickstart of ``checkout``."""
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


class Cells:
    """Cells on images drawn at random in a copy of a checkout, trained again and again."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        self.folder = work_folder(checkout, folder, yaml.safe_load(STUDY))
        self.data = self.folder / "results/data/synthetic-32"
        run(snakemake("--cores", "1", "results/data/synthetic-32/digest.json"), self.folder)

    def train(self, model: str, strategy: str, key: str) -> float:
        """Train a cell; the number ``key`` of its metrics.json."""
        (cell,) = self.folder.glob(f"results/cells/{model}.{strategy}.*/cell.json")
        out = cell.with_name("metrics.json")
        words = ["--cell", str(cell), "--data", str(self.data), "--out", str(out)]
        run([sys.executable, "scripts/launch.py", *words], self.folder)
        return read_json(out)[key]


def cells_in_turns(context: Context, model: str, key: str) -> dict[str, Pairs]:
    """The number ``key`` of the cells of ``model``, eager and ddp, of every checkout."""
    contenders = {}
    for name, checkout in context.checkouts.items():
        cells = Cells(checkout, context.folder / name)
        for strategy in ("eager", "ddp"):
            contenders[f"{strategy}, {name}"] = partial(cells.train, model, strategy, key)
    return take_turns(contenders, context.pairs)


def bench_train(context: Context) -> list[Row]:
    """seconds of ResNet-50 cells, eager and ddp of 2 ranks; the other checkout's over this one's"""
    seconds = cells_in_turns(context, "resnet50", "train_seconds")
    rows = [Row(f"training, {name}", "s", means(pairs)) for name, pairs in seconds.items()]
    for strategy in ("eager", "ddp"):
        if theirs := seconds.get(f"{strategy}, the other"):
            what, ours = f"images a second, {strategy}", seconds[f"{strategy}, this"]
            rows.append(ratio(f"{what}, over the other", theirs, ours, reaches=0.98))
    return rows


def bench_start(context: Context) -> list[Row]:
    """seconds from the launcher's start to the first timed step, ddp beside eager"""
    seconds = cells_in_turns(context, "resnet18", "startup_seconds")
    rows = [Row(f"start, {name}", "s", means(pairs)) for name, pairs in seconds.items()]
    eager, ddp = seconds["eager, this"], seconds["ddp, this"]
    return [*rows, ratio("start of ddp over that of eager, this", ddp, eager, at_most=1.2)]


# ---------------------------------------------------------------- the workflow


def bench_quickstart(context: Context, **changes: object) -> list[Row]:
    """core-seconds that quickstart's cells take to start; `snakemake -n` when all is done"""
    rows, contenders = [], {}
    for name, checkout in context.checkouts.items():
        folder = work_folder(checkout, context.folder / name, quickstart(checkout, **changes))
        run(snakemake("--quiet"), folder)
        found = [read_json(path) for path in folder.glob("results/cells/*/metrics.json")]
        for key, what in (("startup_seconds", "starting"), ("train_seconds", "training")):
            spent = sum((each[key] or 0) * each["cell"]["hardware"]["devices"] for each in found)
            bound = {"at_most": 220} if (name, what) == ("this", "starting") else {}
            rows.append(
                Row(f"{what} quickstart's {len(found)} cells, {name}", "core-s", [spent], **bound)
            )
        contenders[name] = partial(seconds_of, snakemake("-n"), folder)
    bare = bare_workflow(context.folder / BARE, 1)
    run(snakemake("--cores", "1"), bare)
    contenders[BARE] = partial(seconds_of, snakemake("-n"), bare)
    seconds = {name: means(pairs) for name, pairs in take_turns(contenders, context.pairs).items()}
    rows += [Row(f"snakemake -n, all done, {name}", "s", each) for name, each in seconds.items()]
    more = [ours - theirs for ours, theirs in zip(seconds["this"], seconds[BARE], strict=True)]
    return [*rows, Row(f"snakemake -n, all done, this beyond {BARE}", "s", more, at_most=1.5)]


def bench_cells5000(context: Context, seeds: int = 500) -> list[Row]:
    """seconds of planning 5,000 cells, 500 seeds of quickstart: parsing and a dry run"""
    contenders, command = {}, snakemake("-n", "--quiet")
    for name, checkout in context.checkouts.items():
        study = quickstart(checkout, seeds=list(range(seeds)))
        folder = work_folder(checkout, context.folder / name, study)
        contenders[name] = partial(seconds_of, command, folder)
    bare = bare_workflow(context.folder / BARE, 10 * seeds)
    contenders[BARE] = partial(seconds_of, command, bare)
    rows = [
        Row(f"planning {10 * seeds:,} cells, {name}", "s", means(pairs))
        for name, pairs in take_turns(contenders, max(1, context.pairs // 5)).items()
    ]
    rows[0].at_most = 10
    return rows


def benchmarks() -> dict[str, Callable[[Context], list[Row]]]:
    """All benchmarks by name: the functions of this file whose name begins with ``bench_``."""
    return {k.removeprefix("bench_"): v for k, v in globals().items() if k.startswith("bench_")}
