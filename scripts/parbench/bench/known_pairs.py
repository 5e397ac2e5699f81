"""Pairs with a known result: an A/A pair, and a side that is slowed on purpose."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import yaml

from parbench.bench.timing import BenchRow
from parbench.files import read_json
from parbench.runs.records import PairRun
from parbench.verdicts.pairs import EQUAL, Compared, caveats, restart

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


def in_rotation(cells: Path) -> list[Path]:
    """Return the folders of a study's pairs, all first restarts, then all second ones, and so on,
    so that a drift of the machine affects all pairs alike."""
    by_baseline: dict[str, list[Path]] = {}
    for path in sorted(cells.glob("*.pair.*/cell.json")):
        baseline = repr(read_json(path)["sides"][1])
        by_baseline.setdefault(baseline, []).append(path.parent)
    return list(itertools.chain.from_iterable(zip(*by_baseline.values(), strict=True)))


def share_of(run: PairRun) -> float:
    """Return the share by which the baseline was slowed; 0 for an A/A pair."""
    return run.cell.sides[1].strategy.options.get("share", 0.0)


def row(share: float, runs: Sequence[PairRun]) -> BenchRow:
    """Return the row of ``runs``, the restarts of a pair whose baseline is slowed by ``share``,
    with the reading that a study's pair would have."""
    compared = Compared(tuple(map(restart, runs)), (), ())
    reading = compared.reading(EQUAL) if share else compared.equal_reading
    reading_text = "; ".join(filter(None, (reading, caveats(compared))))
    what = f"slowed by {100 * share:g} %" if share else "A/A pair"
    return BenchRow(what, "x", compared.series, reading_text)
