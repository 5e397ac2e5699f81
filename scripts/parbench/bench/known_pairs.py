"""Pairs with a known result: equal sides, and a side that is slowed on purpose."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from parbench import strategies
from parbench.bench.timing import BenchRow
from parbench.files import read_json
from parbench.runs.records import PairRun
from parbench.verdicts import sequential
from parbench.verdicts.pairs import restart
from parbench.verdicts.sequential import FAILS, HOLDS, Series

EQUAL = 0.05  # the margin within which sides count as equal

STRATEGY = '''"""Eager training, slowed by a known share of its own processor time."""

import time

from parbench.strategies import eager


class Strategy(eager.Strategy):
    """As eager; every step is longer by `share`."""

    OPTIONS = {"share": {"description": "of the time", "type": "number", "default": 0.0}}
    ended = None

    def step(self, optimizer, scaler):
        super().step(optimizer, scaler)
        now = time.process_time()
        until = now + self.options["share"] * (now - (self.ended or now))
        while (now := time.process_time()) < until:
            pass
        self.ended = now
'''

STUDY = """
title: bench
description: of make bench
citation: null
dataset: synthetic-32
seeds: [0]
settings: {epochs: 1, steps: 8, global_batch: 32, optimizer: sgd, schedule: constant,
           learning_rate: 0.01}
models: {resnet18: {}}
variants:
  eager: {strategy: eager, hardware: cpu1}
  slowed3: {strategy: slowed, options: {share: 0.03}, hardware: cpu1, baseline: eager}
  slowed10: {strategy: slowed, options: {share: 0.1}, hardware: cpu1, baseline: eager}
pairs:
  compare:
    - {variant: eager, baseline: eager}
    - {variant: eager, baseline: slowed3}
    - {variant: eager, baseline: slowed10}
tables:
  - {title: All, variants: [eager, slowed3, slowed10], metrics: [train_seconds]}
"""


def study(restarts: int, **changes: object) -> dict:
    """Return a study that pairs eager training with itself, and with itself slowed."""
    content = yaml.safe_load(STUDY) | changes
    return {**content, "pairs": {**content["pairs"], "restarts": restarts}}


def each_strategy(restarts: int) -> dict:
    """Return a study that pairs every strategy with itself, on two cores if it can use them."""
    variants = {}
    for name in strategies.names():
        kind = strategies.load(name)
        ways = sorted(kind.certified(), key=lambda way: way[0] != 2)
        if ways and kind.TURNS:
            devices, options = ways[0]
            variants[name] = {"strategy": name, "options": options, "hardware": f"cpu{devices}"}
    compare = [{"variant": name, "baseline": name} for name in variants]
    table = {"title": "All", "variants": list(variants), "metrics": ["train_seconds"]}
    pairs = {"compare": compare, "restarts": restarts}
    return yaml.safe_load(STUDY) | {"variants": variants, "pairs": pairs, "tables": [table]}


def add_strategy(checkout: Path) -> None:
    """Add the strategy `slowed` to a copy of a checkout."""
    path = checkout / "scripts/parbench/strategies/slowed.py"
    path.write_text(STRATEGY, encoding="utf-8")


def in_rotation(cells: Path) -> list[Path]:
    """Return the folders of a study's pairs: all first restarts, all second ones, and so on, so
    that a drift of the machine affects all pairs alike."""
    by_baseline: dict[str, list[Path]] = {}
    for path in sorted(cells.glob("*.pair.*/cell.json")):
        baseline = repr(read_json(path)["sides"][1])
        by_baseline.setdefault(baseline, []).append(path.parent)
    return list(itertools.chain.from_iterable(zip(*by_baseline.values(), strict=True)))


def share_of(run: PairRun) -> float:
    """Return the share by which the baseline was slowed; 0 for A/A."""
    return run.cell.sides[1].strategy.options.get("share", 0.0)


def unexplained(run: PairRun) -> float:
    """Return the share of the sides' cores that programs other than the sides kept busy."""
    cores = [side.hardware.devices * side.hardware.threads for side in run.cell.sides]
    return sum(turn.others for turn in run.slices) / sum(
        turn.seconds * cores[turn.side] for turn in run.slices
    )


@dataclass
class PairRow(BenchRow):
    """A row of what restarts measured, with its verdict by the rule of all verdicts.

    ``values``: the baseline's time over the variant's; ``share``: by which the baseline is slowed.
    """

    share: float
    disturbed: int = 0  # pairs

    def add(self, run: PairRun) -> None:
        """Add a restart."""
        measured = restart(run)
        self.values.append(math.exp(measured.value))
        self.disturbed += measured.disturbed

    def result(self) -> dict:
        """Return the row for results/bench.json; its mean is the geometric one."""
        series = Series(dict(enumerate(map(math.log, self.values))), "restarts", logs=True)
        interval = series.interval()
        if self.share:
            verdict = f"more than 1: {sequential.within(interval, (0.0, math.inf))}"
        else:
            word = sequential.within(interval, sequential.ratio_margin(EQUAL))
            word = {HOLDS: "equal", FAILS: "different"}.get(word, word)
            verdict = f"within {100 * EQUAL:g} %: {word}"
        summary = {"mean": series.mean, "low": series.ci_low, "high": series.ci_high}
        return {**asdict(self), **summary, "verdict": verdict}


def row(share: float) -> PairRow:
    """Return a row without restarts yet, of a baseline slowed by this share."""
    return PairRow(f"slowed by {100 * share:g} %" if share else "A/A", "x", [], share)
