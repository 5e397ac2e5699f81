"""Pairs with a known result: equal sides, and a side that is slowed on purpose."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from parbench.bench.turns import BenchRow
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


def add_strategy(checkout: Path) -> None:
    """Add the strategy `slowed` to a copy of a checkout."""
    path = checkout / "scripts/parbench/strategies/slowed.py"
    path.write_text(STRATEGY, encoding="utf-8")


def by_share(cells: Path) -> dict[float, list[Path]]:
    """Return the folders of a study's pairs, in the order of their restarts, by the share that
    slows the baseline (0 for A/A)."""
    folders: dict[float, list[Path]] = {}
    for path in cells.glob("*.pair.*/cell.json"):
        options = read_json(path)["sides"][1]["strategy"]["options"]
        folders.setdefault(options.get("share", 0.0), []).append(path.parent)
    return {share: sorted(folders[share]) for share in sorted(folders)}


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
    """Return a row without restarts yet."""
    return PairRow(f"slowed by {100 * share:g} %" if share else "A/A", "x", [], share)
