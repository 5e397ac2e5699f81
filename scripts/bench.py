"""Measure what parbench itself costs: its loop, its input, its start, its workflow.

Every ratio is one of two programs that take turns in one process, with the program against itself
beside it as the noise floor. docs/bench.md says what each row means.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.metadata
import itertools
import json
import math
import os
import platform
import random
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

import apptainer
import command
import config
import images
import lease
import machine
import measure
import processes
import provenance
import stopping
import strategies
from errors import ParbenchError, run_main
from files import read_json, write_json

if TYPE_CHECKING:
    import torch
    from torch import nn


ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (*measure.PACKAGES, "snakemake", "pillow")
CLASSES = 10
CONFIDENCE = 0.95
# What a copy of the project needs to run its workflow.
PARTS = ("Snakefile", "config.yaml", "rules", "scripts", "studies", "profiles", "containers")

# A slice is an epoch of two steps: short, so that both sides of a pair meet the same load.
BATCH = 64
IMAGES = 2 * BATCH
INPUT_BATCH = 128
INPUT_IMAGES = 6400
INPUT_EPOCHS = 8  # of the faster side, so that its slices are not over in an instant


# ---------------------------------------------------------------- statistics


def interval(values: Iterable[float]) -> dict:
    """{n, median, low, high, coverage, min, max} of ``values``.

    ``low`` and ``high`` bound the median by order statistics: the values of rank k and n + 1 - k,
    for the largest k that keeps ``coverage`` (exact, for any continuous distribution) at 95 % or
    more. They are None below 6 values, where not even the extremes reach it. ValueError when
    ``values`` is empty.
    """
    ordered = sorted(values)
    n = len(ordered)
    found = {
        "n": n,
        "median": statistics.median(ordered),
        "low": None,
        "high": None,
        "coverage": None,
        "min": ordered[0],
        "max": ordered[-1],
    }
    below = 0.0  # how probable it is that fewer than `rank` of n values lie below the median
    for rank in range(1, n // 2 + 1):
        below += math.comb(n, rank - 1) / 2**n
        coverage = 1 - 2 * below
        if coverage < CONFIDENCE:
            break
        found |= {"low": ordered[rank - 1], "high": ordered[n - rank], "coverage": coverage}
    return found


@dataclass(frozen=True)
class Bound:
    """What a row promises. ``key`` of its interval is held against ``value``."""

    text: str
    key: str
    value: float
    at_least: bool

    def verdict(self, found: dict) -> str:
        """pass, short, or undecided where there are too few values for an interval."""
        if found[self.key] is None:
            return "undecided"
        reached = found[self.key] >= self.value if self.at_least else found[self.key] <= self.value
        return "pass" if reached else "short"


def reaches(value: float) -> Bound:
    """The interval of a ratio reaches ``value``: its upper end does."""
    return Bound(f"interval reaches {value:g}", "high", value, at_least=True)


def at_least(value: float) -> Bound:
    """The whole interval of a ratio lies at ``value`` or above."""
    return Bound(f"at least {value:g}", "low", value, at_least=True)


def at_most(value: float, unit: str) -> Bound:
    """The median is ``value`` or less."""
    return Bound(f"at most {value:g} {unit}", "median", value, at_least=False)


@dataclass
class Row:
    """One line of the result. ``noise``: the same against itself; ``reason``: of a missing number.

    ``more`` holds what a reader who doubts the number wants to see: samples, rates, conditions.
    """

    benchmark: str
    what: str
    unit: str
    found: dict | None = None
    noise: dict | None = None
    bound: Bound | None = None
    verdict: str = ""
    reason: str | None = None
    more: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.found is None:
            self.verdict = "not run"
        elif self.bound is not None:
            self.verdict = self.bound.verdict(self.found)


# ---------------------------------------------------------------- taking turns


@dataclass
class Slice:
    """A short piece of work: how many images, and the seconds that they took.

    ``cpu``: processor seconds of the process, which other programs on the core do not add to.
    """

    images: int
    seconds: float
    cpu: float


def interleave(
    contenders: dict[str, Callable[[], Slice]], pairs: int, shown: bool
) -> dict[str, list[list[Slice]]]:
    """Let ``contenders`` take turns: for each, ``pairs`` lists of two slices.

    Each pair is there and back (A B B A), so that a steady drift falls on all alike. The order
    changes from pair to pair, through all there are, because a slice inherits the caches of the
    one before it. One slice of each comes first, unmeasured.
    """
    for work in contenders.values():
        work()
    orders = list(itertools.permutations(contenders))
    random.Random(0).shuffle(orders)  # noqa: S311  (no secret)
    slices: dict[str, list[list[Slice]]] = {name: [] for name in contenders}
    for pair in tqdm(range(pairs), unit="pair", disable=not (shown and sys.stderr.isatty())):
        order = orders[pair % len(orders)]
        for name in order:
            slices[name].append([])
        for name in order + order[::-1]:
            slices[name][-1].append(contenders[name]())
    return slices


def rates(pairs: list[list[Slice]], clock: str = "seconds") -> list[float]:
    """Images per second of each pair, by ``clock`` (seconds or cpu)."""
    return [
        sum(part.images for part in pair) / sum(getattr(part, clock) for part in pair)
        for pair in pairs
    ]


def ratio_row(
    benchmark: str, what: str, slices: dict, other: str, bound: Bound | None = None
) -> Row:
    """The row of ``product`` over ``other``, with ``product`` over ``itself`` as its noise."""

    def ratios(name: str, clock: str) -> list[float]:
        both = zip(rates(slices["product"], clock), rates(slices[name], clock), strict=True)
        return [ours / theirs for ours, theirs in both]

    return Row(
        benchmark,
        what,
        "x",
        interval(ratios(other, "seconds")),
        interval(ratios("itself", "seconds")),
        bound,
        more={
            "images_per_second": {
                name: statistics.median(rates(slices[name]))
                for name in ("product", "itself", other)
            },
            "ratios": ratios(other, "seconds"),
            "noise_ratios": ratios("itself", "seconds"),
            # By processor time: what is left of a difference when other programs want the core too.
            "by_cpu_time": {
                "ratio": interval(ratios(other, "cpu")),
                "noise": interval(ratios("itself", "cpu")),
            },
        },
    )


# ---------------------------------------------------------------- what is measured


@dataclass
class Context:
    """Of one call: a temporary ``folder``, ``pairs`` for ratios, ``runs`` for times (or None)."""

    folder: Path
    pairs: int
    runs: int | None = None


def cell(strategy: str, devices: int = 1, model: str = "resnet50", **changes: Any) -> dict:
    """A cell on the synthetic data; ``changes`` go to its settings, or to its strategy's options.

    Every option and setting that is not named has its schema's default.
    """
    options = {k: part.get("default") for k, part in strategies.load(strategy).OPTIONS.items()}
    schema = config.settings_schema()
    settings = {key: part["default"] for key, part in schema.items() if "default" in part}
    settings |= {"epochs": 1, "optimizer": "sgd", "schedule": "constant", "learning_rate": 0.01}
    settings |= {"global_batch": BATCH, "train_samples": IMAGES, "test_samples": BATCH}
    for key, value in changes.items():
        (options if key in options else settings)[key] = value
    samples = {key: settings.pop(key) for key in ("train_samples", "test_samples")}
    return {
        "schema_version": 1,
        "id": f"bench.{model}.{strategy}.cpu{devices}",
        "model": {"name": model, "options": {}},
        "strategy": {"name": strategy, "options": options},
        "hardware": {
            "name": f"cpu{devices}",
            "device": "cpu",
            "devices": devices,
            "threads": 1,
            "nodes": 1,
            "gpu_model": None,
        },
        "dataset": {"name": "synthetic", **samples},
        "training": settings,
        "seed": 0,
        "stack": "current",
        "deployment": "host",
        "run": {
            "timeout_seconds": 600,
            "checkpoint_seconds": 300,
            "grace_seconds": 60,
            "interface": None,
            "connect_seconds": 120,
        },
    }


def synthetic(folder: Path, train_images: int, test_images: int = BATCH) -> Path:
    """A dataset of noise, 3 x 32 x 32 and 10 classes, in the loader's own files; its folder."""
    import numpy as np

    import dataset

    generator = np.random.default_rng(0)

    def part(number: int) -> tuple:
        images = generator.integers(0, 256, (number, 3, 32, 32), dtype=np.uint8)
        return images, np.arange(number, dtype=np.int64) % CLASSES

    images = dataset.Images(
        *part(train_images),
        *part(test_images),
        classes=[str(number) for number in range(CLASSES)],
        source="random numbers",
        source_sha256="0" * 64,
    )
    target = folder / "synthetic"
    target.mkdir(parents=True, exist_ok=True)
    dataset.convert(
        "synthetic", "synthetic", images, target / "data.safetensors", target / "digest.json"
    )
    return target


def missing(value: dict) -> str | None:
    """Why this machine cannot run the cell ``value``; None when it can."""
    lacking = machine.missing(value["hardware"], {"cpu": len(lease.usable_cores()), "cuda": {}})
    software = machine.Software()
    return lacking or strategies.load(value["strategy"]["name"]).unavailable(value, software)


# --- the loop


def bench_eager(context: Context) -> list[Row]:
    """images per second of an eager ResNet-50 cell over a bare hand-written loop"""
    synthetic(context.folder, IMAGES)
    slices = run_worker(context, "loops", cell("eager"))
    return [
        ratio_row(
            "eager", "over a bare loop, batches in memory", slices, "in_memory", reaches(0.98)
        ),
        ratio_row("eager", "over a bare loop, the same input", slices, "same_input"),
    ]


def bench_ddp(context: Context) -> list[Row]:
    """images per second of a 2-worker ddp ResNet-50 cell over a bare DDP script"""
    value = cell("ddp", devices=2)
    what = "over a bare DDP script, batches in memory"
    if reason := missing(value):
        return [Row("ddp", what, "x", bound=reaches(0.97), reason=reason)]
    synthetic(context.folder, IMAGES)
    slices = run_worker(context, "loops", value)
    return [
        ratio_row("ddp", what, slices, "in_memory", reaches(0.97)),
        ratio_row("ddp", "over a bare DDP script, the same input", slices, "same_input"),
    ]


def bench_input(context: Context) -> list[Row]:
    """images per second of the input pipeline over torchvision transforms in a DataLoader"""
    synthetic(context.folder, INPUT_IMAGES)
    value = cell("eager", global_batch=INPUT_BATCH, train_samples=INPUT_IMAGES)
    slices = run_worker(context, "inputs", value)
    what = "over torchvision transforms in a DataLoader"
    return [ratio_row("input", what, slices, "transforms", at_least(4))]


def bench_checkpoint(context: Context) -> list[Row]:
    """percent of its time that an eager ResNet-50 cell with AdamW spends writing checkpoints"""
    synthetic(context.folder, IMAGES)
    value = cell("eager", optimizer="adamw")
    every = value["run"]["checkpoint_seconds"]
    pairs = run_worker(context, "checkpoint", value)["write"]
    seconds = [part.seconds for pair in pairs for part in pair]
    found = interval(100 * each / (every + each) for each in seconds)
    what = f"writing checkpoints, one every {every} s"
    return [
        Row("checkpoint", what, "%", found, bound=at_most(2, "%"), more={"seconds": seconds}),
    ]


def run_worker(context: Context, name: str, value: dict) -> dict[str, list[list[Slice]]]:
    """Run ``work_<name>`` on the cell ``value`` in processes of its own, pinned to leased cores.

    Its slices come back through a file. The processes are those that the launcher would start.
    """
    paths = {"cell_path": context.folder / "cell.json", "data": context.folder / "synthetic"}
    out = context.folder / "slices.json"
    write_json(paths["cell_path"], value)
    module = strategies.load(value["strategy"]["name"])
    with lease.cores(machine.cores_of(value["hardware"]), value["id"]) as held:
        _, environment = command.command(value, **paths, out=out, devices=held.devices)
        words = [*module.launcher(value, sys.executable), str(Path(__file__))]
        words += ["--worker", name, "--folder", str(context.folder), "--pairs", str(context.pairs)]
        call(words, environment=environment, descriptors=held.descriptors)
    return {
        contender: [[Slice(*part) for part in pair] for pair in pairs]
        for contender, pairs in read_json(out).items()
    }


def call(
    words: list[str],
    *,
    folder: Path = ROOT,
    environment: dict[str, str] | None = None,
    descriptors: Iterable[int] = (),
) -> str:
    """Run a command in ``folder`` to its end, and return what it printed.

    Nothing of it lives on when this process is asked to end. ParbenchError with the end of its
    output when it fails.
    """
    with (
        tempfile.TemporaryDirectory(prefix="parbench-") as state,
        tempfile.TemporaryFile("w+") as output,
        tempfile.TemporaryFile("w+") as errors,
    ):
        try:
            process = subprocess.Popen(
                words,
                cwd=folder,
                env={**os.environ, **(environment or {}), "PARBENCH_STATE": state},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if sys.stderr.isatty() else errors,  # a terminal sees the bar
                pass_fds=tuple(descriptors),
            )
            status = process.wait()
        finally:  # found by their environment: the end may come before a start has returned
            processes.end_all(state, processes.GRACE_SECONDS)
        output.seek(0)
        errors.seek(0)
        text = output.read()
        if status != 0:
            last = "\n".join((text + errors.read()).splitlines()[-15:])
            raise ParbenchError(f"{shlex.join(words)}: ended with status {status}:\n{last}")
        return text


def work_loops(folder: Path, pairs: int) -> None:
    """One rank of bench_eager or bench_ddp: the product twice, and the bare loop on two inputs."""
    import torch

    value = read_json(folder / "cell.json")
    module = strategies.load(value["strategy"]["name"])
    torch.set_num_threads(1)
    strategy = module.Strategy(value)
    strategy.setup()
    measure.pin(strategy.local_rank, module.processes(value))
    samples = value["dataset"]["train_samples"]
    contenders = {
        name: _timed(strategy, samples, make(value, folder / "synthetic", strategy))
        for name, make in (
            ("product", _product),
            ("itself", _product),
            ("in_memory", partial(_bare, in_memory=True)),
            ("same_input", partial(_bare, in_memory=False)),
        )
    }
    slices = interleave(contenders, pairs, shown=strategy.rank == 0)
    if strategy.rank == 0:
        _write_slices(folder, slices)
    del contenders  # DDP's models go before their process group
    gc.collect()
    strategy.close()


def _product(value: dict, data: Path, strategy: Any) -> Callable[[], None]:
    """The product's own epoch, without a bar."""
    import checkpoint
    import train
    from progress import Display, Pulse

    run = train.Run(value, data, strategy, Pulse(strategy.rank))
    run.begin()
    display = Display(False, 1, len(run.bounds), run.samples)

    def epoch() -> None:
        run.place = checkpoint.Place()
        run.train_epoch(display)

    return epoch


def _bare(value: dict, data: Path, strategy: Any, *, in_memory: bool) -> Callable[[], None]:
    """What one would write by hand: torchvision's model, torch's optimizer, a loop.

    Same weights, same batches. ``in_memory``: they lie there, cropped, flipped and normalised.
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torchvision.models import get_model

    import loader

    training = value["training"]
    images = loader.load(data, "cpu", train_samples=value["dataset"]["train_samples"])
    augment = loader.Augment(images, value["seed"], training["image_size"], training["augment"])
    samples = len(images.train_labels)
    order = loader.order(value["seed"], 0, samples)
    bounds = loader.batches(samples, training["global_batch"], training["min_tail"])

    def batches() -> Iterator[tuple]:
        for start, stop in bounds:
            share = order[start:stop].tensor_split(strategy.world_size)[strategy.rank]
            yield augment.train_batch(share, 0)

    torch.manual_seed(value["seed"])
    model: nn.Module = get_model(value["model"]["name"], num_classes=CLASSES)
    if strategy.world_size > 1:
        model = DistributedDataParallel(model)
    model.train()
    optimizer = torch.optim.SGD(
        model.parameters(),
        training["learning_rate"],
        momentum=training["momentum"],
        weight_decay=training["weight_decay"],
    )
    kept = list(batches()) if in_memory else None
    return lambda: bare_epoch(model, optimizer, kept if kept is not None else batches())


def bare_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable) -> None:
    """The bare loop. ``batches``: pairs of images and labels."""
    from torch.nn.functional import cross_entropy

    for inputs, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def _timed(strategy: Any, images: int, epoch: Callable[[], None]) -> Callable[[], Slice]:
    """A contender out of an epoch: ranks start together, and the slowest one's time counts."""
    import torch

    def work() -> Slice:
        strategy.reduce(torch.zeros(1))
        cpu, begun = time.process_time(), time.perf_counter()
        epoch()
        spent = torch.tensor([time.perf_counter() - begun, time.process_time() - cpu])
        return Slice(images, *strategy.reduce(spent, "max").tolist())

    return work


def _write_slices(folder: Path, slices: dict[str, list[list[Slice]]]) -> None:
    write_json(
        folder / "slices.json",
        {
            name: [[[part.images, part.seconds, part.cpu] for part in pair] for pair in pairs]
            for name, pairs in slices.items()
        },
    )


def work_checkpoint(folder: Path, pairs: int) -> None:
    """The process of bench_checkpoint: after an epoch, one checkpoint after the other."""
    import torch

    import train
    from progress import Display, Pulse

    value = read_json(folder / "cell.json")
    strategy = strategies.load("eager").Strategy(value)
    torch.set_num_threads(1)
    strategy.setup()
    measure.pin(0, 1)
    run = train.Run(value, folder / "synthetic", strategy, Pulse(0))
    run.find_checkpoint(folder / "checkpoints", measure.environment(value, run.data.sha256))
    run.begin()
    run.train_epoch(Display(False, 1, len(run.bounds), run.samples))  # AdamW now has its averages

    def write() -> Slice:
        run.place.step += 1  # a new one, which takes the oldest one's place
        cpu, begun = time.process_time(), time.perf_counter()
        run.write_checkpoint()
        return Slice(0, time.perf_counter() - begun, time.process_time() - cpu)

    _write_slices(folder, interleave({"write": write}, pairs, shown=True))


# --- the input pipeline


def work_inputs(folder: Path, pairs: int) -> None:
    """The process of bench_input: the product's batches, and torchvision's."""
    import torch

    import loader

    value = read_json(folder / "cell.json")
    torch.set_num_threads(1)
    measure.pin(0, 1)
    images = loader.load(folder / "synthetic", "cpu")
    contenders = {
        "product": _input(partial(_product_batches, value, images), INPUT_EPOCHS),
        "itself": _input(partial(_product_batches, value, images), INPUT_EPOCHS),
        "transforms": _input(partial(_torchvision_batches, images), 1),
    }
    _write_slices(folder, interleave(contenders, pairs, shown=True))


def _input(make: Callable[[], Callable[[int], Iterable]], epochs: int) -> Callable[[], Slice]:
    """A contender that only takes batches; each slice goes on with the next epoch."""
    batches, number = make(), itertools.count()

    def work() -> Slice:
        cpu, begun = time.process_time(), time.perf_counter()
        count = 0
        for _ in range(epochs):
            for inputs, _labels in batches(next(number)):
                count += len(inputs)
        return Slice(count, time.perf_counter() - begun, time.process_time() - cpu)

    return work


def _product_batches(value: dict, images: Any) -> Callable[[int], Iterator[tuple]]:
    import loader

    training = value["training"]
    augment = loader.Augment(images, value["seed"], training["image_size"], augment=True)
    samples = len(images.train_labels)
    bounds = loader.batches(samples, INPUT_BATCH, training["min_tail"])

    def batches(epoch: int) -> Iterator[tuple]:
        order = loader.order(value["seed"], epoch, samples)
        for start, stop in bounds:
            yield augment.train_batch(order[start:stop], epoch)

    return batches


def _torchvision_batches(images: Any) -> Callable[[int], Iterable]:
    """The usual way: a dataset that gives PIL images, transforms on each, a shuffling DataLoader.

    In the process itself (num_workers=0): one core for either side.
    """
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from torchvision import transforms

    steps = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(images.mean, images.std),
        ]
    )

    class Pictures(Dataset):
        def __init__(self) -> None:
            # As torchvision.datasets.CIFAR10 holds them: uint8 [N, H, W, 3], labels in a list.
            self.pixels = images.train_images.permute(0, 2, 3, 1).contiguous().numpy()
            self.labels = images.train_labels.tolist()

        def __len__(self) -> int:
            return len(self.labels)

        def __getitem__(self, index: int) -> tuple:
            return steps(Image.fromarray(self.pixels[index])), self.labels[index]

    pictures = DataLoader(Pictures(), batch_size=INPUT_BATCH, shuffle=True)
    return lambda epoch: pictures


# --- the start of a cell


def bench_startup(context: Context) -> list[Row]:
    """seconds from job start to the first timed step of a cell, by strategy"""
    runs = context.runs or 3
    synthetic(context.folder, IMAGES)
    rows = [_import_row(runs)]
    for strategy, devices, options in (
        ("eager", 1, {}),
        ("gpipe", 1, {"balance": [2]}),
        ("ddp", 2, {}),
        ("horovod", 2, {}),
    ):
        value = cell(strategy, devices, "resnet18", **options)
        what = f"{strategy}, resnet18, {devices} core{'s' * (devices > 1)}"
        if reason := missing(value):
            rows.append(Row("startup", what, "s", reason=reason))
            continue
        parts = [_start(context.folder, value) for _ in range(runs)]
        total = [part["launcher"] + part["startup_seconds"] for part in parts]
        rows.append(Row("startup", what, "s", interval(total), more={"runs": parts}))
    return rows


def _import_row(runs: int) -> Row:
    """Beside the starts: what no program that uses torch can do without."""
    words = [sys.executable, "-c", "import torch, torchvision"]
    with lease.cores(1, "bench startup") as held:
        results = [run_measured(words, ROOT, held) for _ in range(runs + 1)]
    return _seconds_row("startup", "import torch, torchvision alone", results[1:])


def _start(folder: Path, value: dict) -> dict[str, float]:
    """Run a cell through the launcher: {launcher, startup_seconds}.

    ``launcher``: seconds before the launcher's own clock starts, as all that its process took
    beyond the run that it clocked.
    """
    home = folder / "cells" / value["id"]
    out = home / "metrics.json"
    write_json(home / "cell.json", value)
    words = [sys.executable, str(ROOT / "scripts/launch.py"), "--cell", str(home / "cell.json")]
    words += ["--data", str(folder / "synthetic"), "--out", str(out), "--progress", "lines"]
    begun = time.monotonic()
    call(words)
    total = time.monotonic() - begun
    return {
        "launcher": total - read_json(home / "wall.json")["seconds"],
        "startup_seconds": read_json(out)["startup_seconds"],
    }


def bench_image(context: Context) -> list[Row]:
    """seconds that a cell's start takes longer in an image than on the host"""
    what = "eager, resnet18, 1 core: image minus host"
    bound = at_most(1, "s")
    if trouble := apptainer.probe().trouble:
        return [Row("image", what, "s", bound=bound, reason=trouble)]
    runs = context.runs or 30
    synthetic(context.folder, IMAGES)
    host = cell("eager", 1, "resnet18")
    settings = config.load()["images"]
    write_json(
        context.folder / "plan" / "images.json", {"stack": host["stack"], "settings": settings}
    )
    images.ensure(images.image("torch", host["stack"], settings), settings)
    boxed = {**host, "id": f"{host['id']}.image", "deployment": "apptainer"}
    found: dict[str, list[float]] = {"host": [], "image": []}
    for number in range(runs + 1):
        turns = [("host", host), ("image", boxed)]
        for name, value in turns[:: 1 if number % 2 else -1]:
            parts = _start(context.folder, value)
            if number:  # the first reads the disk
                found[name].append(parts["launcher"] + parts["startup_seconds"])
    more = [image - host for image, host in zip(found["image"], found["host"], strict=True)]
    # Against itself: neighbouring runs on the host.
    noise = [after - before for before, after in itertools.pairwise(found["host"])]
    return [
        Row("image", what, "s", interval(more), interval(noise) if noise else None, bound),
        Row("image", "start in an image", "s", interval(found["image"])),
        Row("image", "start on the host", "s", interval(found["host"])),
    ]


# --- the workflow


@dataclass(frozen=True)
class Measured:
    """A command's wall and processor seconds, its largest process's peak in MB, its output."""

    seconds: float
    cpu: float
    mb: float
    output: str


# The parent's own memory counts as the child's until its exec: a small process starts the command.
MEASURE = """
import json, os, resource, subprocess, sys, time
os.sched_setaffinity(0, json.loads(sys.argv[1]))
begun = time.perf_counter()
done = subprocess.run(sys.argv[2:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
seconds = time.perf_counter() - begun
used = resource.getrusage(resource.RUSAGE_CHILDREN)
output = done.stdout.decode(errors="replace")
print(json.dumps([done.returncode, seconds, used.ru_utime + used.ru_stime,
                  used.ru_maxrss * 1024 / 1e6, output]))
"""


def run_measured(words: list[str], folder: Path, held: lease.Lease) -> Measured:
    """Run ``words`` in ``folder`` on the leased core. ParbenchError when it fails."""
    cores = json.dumps([int(core) for core in held.devices])
    shim = [sys.executable, "-S", "-c", MEASURE, cores, *words]
    # As it is for users: compiled files of the last run are there.
    variables = {"PYTHONDONTWRITEBYTECODE": ""}
    text = call(shim, folder=folder, environment=variables, descriptors=held.descriptors)
    status, seconds, cpu, mb, output = json.loads(text)
    if status != 0:
        last = "\n".join(output.splitlines()[-15:])
        raise ParbenchError(f"{shlex.join(words)} in {folder}: status {status}:\n{last}")
    return Measured(seconds, cpu, mb, output)


def work_folder(folder: Path, studies: dict[str, dict]) -> Path:
    """A copy of the project with ``studies`` as its only ones, for two cores whatever is here."""
    import yaml

    for part in PARTS:
        source, target = ROOT / part, folder / part
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    ignored = shutil.ignore_patterns("final.*", "evidence")
    shutil.copytree(ROOT / "reports", folder / "reports", ignore=ignored)
    for name, study in studies.items():
        (folder / "studies" / f"{name}.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    settings = config.read_yaml(ROOT / "config.yaml")
    settings |= {"studies": list(studies), "available": {"cpu": 2, "cuda": {}}, "override": {}}
    settings |= {"deployment": "host"}  # no image is built for cells that nobody trains
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    return folder


# Stands in for scripts/launch.py while the copy's cells are "trained".
STAND_IN = """
import argparse
import measure

parser = argparse.ArgumentParser()
for name in ("cell", "data", "out", "log"):
    parser.add_argument(f"--{name}")
given = parser.parse_args()
cell = measure.read_cell(given.cell)
reason = "scripts/bench.py finished this cell without training it"
measure.write_unfinished(given.out, cell, "diverged", reason, measure.now(), given.data)
open(given.log, "w").close()
"""


def bench_noop(context: Context, seeds: int = 3) -> list[Row]:
    """seconds of `snakemake -n` of quickstart when everything is done"""
    study = config.study("quickstart") | {"seeds": list(range(seeds))}
    folder = work_folder(context.folder / "work", {"quickstart": study})
    bare = bare_workflow(context.folder / "bare", 1)
    command = [sys.executable, "-m", "snakemake", "-n"]
    with lease.cores(1, "bench noop") as held:
        _finish(folder, held)
        run_measured([*command[:-1], "--cores", "1"], bare, held)
        if "Nothing to be done" not in run_measured(command, folder, held).output:
            raise ParbenchError(f"{folder}: the finished work folder is not finished")
        ours, theirs = alternate(
            context.runs or 10,
            lambda: run_measured(command, folder, held),
            lambda: run_measured(command, bare, held),
        )
    cells = len(list((folder / "results/cells").glob("*/metrics.json")))
    what = f"snakemake -n, quickstart, {cells} cells done"
    return [
        _seconds_row("noop", what, ours, at_most(3, "s")),
        _seconds_row("noop", "snakemake -n, a bare Snakefile, 1 job done", theirs),
    ]


def _seconds_row(
    benchmark: str, what: str, results: list[Measured], bound: Bound | None = None
) -> Row:
    found = interval(result.seconds for result in results)
    samples = {"seconds": [r.seconds for r in results], "cpu_seconds": [r.cpu for r in results]}
    return Row(benchmark, what, "s", found, bound=bound, more=samples)


def _finish(folder: Path, held: lease.Lease) -> None:
    """Let Snakemake do every job of ``folder``, with a stand-in for training."""
    launcher = folder / "scripts" / "launch.py"
    kept = launcher.read_bytes()
    launcher.write_text(STAND_IN)
    run_measured([sys.executable, "-m", "snakemake", "--quiet"], folder, held)
    launcher.write_bytes(kept)


def alternate(number: int, *actions: Callable[[], Measured]) -> list[list[Measured]]:
    """``number`` results of each of ``actions``, which take turns."""
    results: list[list[Measured]] = [[] for _ in actions]
    for _ in range(number):
        for action, found in zip(actions, results, strict=True):
            found.append(action())
    return results


MANY_SEEDS = 500


def bench_cells5000(context: Context, seeds: int = MANY_SEEDS) -> list[Row]:
    """seconds and memory of parsing and a dry run of a study of 5,000 cells"""
    study = config.study("quickstart")
    # Horovod may be missing, and its cells with it: another DDP takes its place.
    variants = {name: v for name, v in study["variants"].items() if v["strategy"] != "horovod"}
    twin = {"strategy": "ddp", "options": {"bucket_cap_mb": 10}, "hardware": "cpu2"}
    variants["ddp-10"] = {**twin, "baseline": "eager"}
    study |= {"seeds": list(range(seeds)), "variants": variants}
    study["tables"] = [{**table, "variants": list(variants)} for table in study["tables"]]
    cells = seeds * len(study["models"]) * len(variants)
    folder = work_folder(context.folder / "work", {"many": study})
    bare = bare_workflow(context.folder / "bare", cells)
    command = [sys.executable, "-m", "snakemake", "-n", "--quiet"]
    with lease.cores(1, "bench cells5000") as held:
        _check_jobs(run_measured([*command, "host"], folder, held).output, cells)
        ours, theirs = alternate(
            context.runs or 3,
            lambda: run_measured(command, folder, held),
            lambda: run_measured(command, bare, held),
        )
    rows = []
    for what, results, bounds in (
        (f"dry run, {cells:,} cells", ours, (at_most(15, "s"), at_most(500, "MB"))),
        (f"dry run, a bare Snakefile of {cells:,} jobs", theirs, (None, None)),
    ):
        rows.append(_seconds_row("cells5000", what, results, bounds[0]))
        peaks = interval(result.mb for result in results)
        rows.append(Row("cells5000", f"{what}, peak memory", "MB", peaks, bound=bounds[1]))
    return rows


def _check_jobs(output: str, cells: int) -> None:
    counted = re.search(r"^train +(\d+)$", output, re.M)
    if counted is None or int(counted[1]) != cells:
        raise ParbenchError(f"the dry run has not the {cells} jobs that it should:\n{output}")


def bare_workflow(folder: Path, jobs: int) -> Path:
    """A folder with the shortest Snakefile of as many ``jobs``."""
    folder.mkdir(parents=True)
    (folder / "Snakefile").write_text(
        f"CELLS = [f'cell{{number}}' for number in range({jobs})]\n"
        "rule all:\n"
        "    input: expand('results/{cell}/metrics.json', cell=CELLS)\n"
        "rule train:\n"
        "    output: 'results/{cell}/metrics.json'\n"
        "    shell: 'touch {output}'\n"
    )
    return folder


# ---------------------------------------------------------------- results


def benchmarks() -> dict[str, Callable[[Context], list[Row]]]:
    """All benchmarks by name: the functions of this file whose name begins with ``bench_``."""
    return {k.removeprefix("bench_"): v for k, v in globals().items() if k.startswith("bench_")}


def conditions() -> dict:
    """Machine, software and load, as they are now."""
    packages = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    scripts = [str(path.relative_to(provenance.SCRIPTS)) for path in _own_files()]
    return {
        "machine": machine.describe(),
        "usable_cores": lease.usable_cores(),
        "python": platform.python_version(),
        "packages": packages,
        **provenance.git_state(),
        "code_digest": provenance.combined(provenance.closure(*scripts)),
    }


def _own_files() -> list[Path]:
    return sorted(provenance.SCRIPTS.rglob("*.py"))


def run_all(names: list[str], pairs: int, runs: int | None, out: Path) -> None:
    """Run the benchmarks ``names``; print each one's rows, and write all to ``out``."""
    result: dict[str, Any] = {
        "schema_version": 1,
        "started": measure.now(),
        "finished": None,
        "pairs": pairs,
        "statistics": "median; its 95 % interval by order statistics; a pair is A B B A in turn",
        "environment": conditions(),
        "load": {},
        "rows": [],
    }
    for name in names:
        print(f"{name}: {benchmarks()[name].__doc__}", flush=True)
        load = {"before": os.getloadavg(), "started": measure.now()}
        with tempfile.TemporaryDirectory(prefix="parbench bench ") as folder:
            rows = benchmarks()[name](Context(Path(folder), pairs, runs))
        result["load"][name] = {**load, "after": os.getloadavg(), "finished": measure.now()}
        result["rows"] += [asdict(row) for row in rows]
        result["finished"] = measure.now()
        print(table(rows), flush=True)
        write_json(out, result)  # after each: the later ones may be stopped
    print(f"{out}")


def table(rows: list[Row]) -> str:
    """Rows as aligned text."""
    head = ("", "median", "95 % interval", "against itself", "bound", "")
    lines = [head]
    for row in rows:
        shown = row.bound.text if row.bound else ""
        numbers = (row.reason or "", "", "")
        if row.found is not None:
            unit = "" if row.unit == "x" else f" {row.unit}"
            noise = f"{_number(row.noise['median'])} {_range(row.noise)}" if row.noise else ""
            numbers = (f"{_number(row.found['median'])}{unit}", _range(row.found), noise)
        lines.append((row.what, *numbers, shown, row.verdict))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _range(found: dict) -> str:
    """[95 % interval], or (smallest to largest) where there are too few values for one."""
    if found["low"] is None:
        return f"({_number(found['min'])} to {_number(found['max'])}, n={found['n']})"
    return f"[{_number(found['low'])}, {_number(found['high'])}]"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all; see --list")
    parser.add_argument("--list", action="store_true", help="the benchmarks, and nothing else")
    parser.add_argument("--pairs", type=int, default=30, help="of every ratio (default: 30)")
    parser.add_argument("--runs", type=int, help="of every time (default: 3 to 10, by benchmark)")
    parser.add_argument("--out", type=Path, default=Path("results/bench.json"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        globals()[f"work_{arguments.worker}"](arguments.folder, arguments.pairs)
        return 0
    known = benchmarks()
    if arguments.list:
        for name, function in known.items():
            print(f"{name:<10} {function.__doc__}")
        return 0
    for name in arguments.names:
        if name not in known:
            raise ParbenchError(f"unknown benchmark {name!r}{config.nearest(name, list(known))}")
    for option, value in (("--pairs", arguments.pairs), ("--runs", arguments.runs)):
        if value is not None and value < 1:
            raise ParbenchError(f"{option} {value}: at least 1 is needed")
    with stopping.Stop():
        try:
            run_all(arguments.names or list(known), arguments.pairs, arguments.runs, arguments.out)
        except stopping.Stopped as stopped:
            print(f"bench: {stopped}", file=sys.stderr)
            return 128 + stopped.number
    return 0


if __name__ == "__main__":
    run_main(main)
