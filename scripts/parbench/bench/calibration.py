"""Estimate how often verdicts err, and how long they take, from measured noise (docs/verdicts.md).

Both sides of an A/A pair are the same program, so restarts differ only by the machine's noise.
Thousands of comparisons are simulated with that noise and a known effect.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from parbench.errors import ParbenchError
from parbench.runs import records
from parbench.runs.records import PairRun
from parbench.verdicts.pairs import EQUAL, Restart, restart
from parbench.verdicts.sequential import (
    ALPHA,
    FAILS,
    HOLDS,
    Band,
    Interval,
    centers,
    ends,
    hodges_lehmann,
    ratio_margin,
    within,
)
from parbench.verdicts.terms import FEWEST, OK, UNDECIDED

CELLS = Path("results/cells")
EFFECTS = (0.0, 0.02, 0.05, 0.1, 0.2)
# Questions about a ratio: whether its logarithm lies within a region.
QUESTIONS: dict[str, Band] = {"> 1": (0.0, math.inf), "within 5 %": ratio_margin(EQUAL)}
RUNS = 2_000
POOL = 20_000  # simulated restarts, from which runs are drawn
HOUR = 3600


@dataclass(frozen=True)
class Simulated:
    """The results of simulated comparisons for one effect and question: shares, and minutes.

    ``edge``: whether the effect is a boundary of the question, where no verdict is right.
    ``minutes``: the median time until a verdict; infinite if most have none after an hour.
    """

    effect: float
    question: str
    edge: bool
    false: float
    undecided_10: float
    undecided_60: float
    minutes: float


def read(paths: Iterable[Path]) -> list[Restart]:
    """Read the restarts of A/A pairs from metrics.json files, ignoring all others."""
    restarts = []
    for path in paths:
        run = records.read(path)
        if not isinstance(run, PairRun) or run.status != OK:
            continue
        if all(side == run.cell.sides[0] for side in run.cell.sides):
            restarts.append(restart(run))
    return restarts


def simulated(restarts: Sequence[Restart], rng: np.random.Generator) -> np.ndarray:
    """Simulate the values of many restarts like the measured ones, without an effect.

    This is a smoothed bootstrap: restarts are drawn with replacement, then pairs inside each. Since
    few restarts would spread too little, a normal kernel is added (Scott's bandwidth); the result
    is scaled to mean 0 and the measured standard deviation (Silverman and Young, 1987).
    """
    values = np.array([hodges_lehmann(each.log_ratios) for each in restarts])
    counts = np.array([len(each.log_ratios) for each in restarts])
    pairs = np.array([np.resize(each.log_ratios, counts.max()) for each in restarts])
    drawn = rng.integers(len(restarts), size=(POOL, 1))
    inside = (rng.random((POOL, int(np.median(counts)))) * counts[drawn]).astype(int)
    spread = np.std(values, ddof=1)
    kernel = spread * len(values) ** -0.2 * rng.standard_normal(POOL)
    pool = centers(pairs[drawn, inside]) + kernel
    return spread * (pool - pool.mean()) / pool.std()


def looks(values: Sequence[float]) -> list[Interval]:
    """Return the interval after each of ``values`` from the 4th on, as `interval` computes it."""
    n = np.arange(FEWEST, len(values) + 1)
    mean, square = (np.cumsum(np.power(values, power))[FEWEST - 1 :] / n for power in (1, 2))
    std = np.sqrt((square - mean**2).clip(0) * n / (n - 1))
    columns = (n, mean, std, *ends(n, mean, std))
    return list(map(Interval, *(column.tolist() for column in columns)))


def table(restarts: Sequence[Restart], seconds: float) -> list[Simulated]:
    """Simulate comparisons of each effect and question; ``seconds``: the cost of a restart."""
    rng = np.random.default_rng(0)
    most = max(int(HOUR / seconds), FEWEST)
    kinds = [(question, effect) for question in QUESTIONS for effect in EFFECTS]
    found: dict[tuple[str, float], list[tuple[float, str]]] = {kind: [] for kind in kinds}
    for run in tqdm(
        rng.choice(simulated(restarts, rng), (RUNS, most)), disable=not sys.stderr.isatty()
    ):
        intervals = looks(run)
        for question, effect in kinds:
            # An effect shifts each value and so the interval; shifting the region back is
            # equivalent.
            low, high = (end - math.log1p(effect) for end in QUESTIONS[question])
            n, verdict = first_verdict(intervals, (low, high))
            found[question, effect].append((n * seconds / 60, verdict))
    return [_row(effect, question, found[question, effect]) for question, effect in kinds]


def first_verdict(intervals: Iterable[Interval], region: Band) -> tuple[float, str]:
    """Return after how many values a growing run has its first verdict, and this verdict; infinity
    and UNDECIDED if there is none."""
    for found in intervals:
        if (verdict := within(found, region)) != UNDECIDED:
            return found.n, verdict
    return math.inf, UNDECIDED


def _row(effect: float, question: str, runs: Sequence[tuple[float, str]]) -> Simulated:
    """Return the results of ``runs``, each given by the minutes until its verdict and the
    verdict."""
    low, high = QUESTIONS[question]
    truth = math.log1p(effect)
    edge = truth in (low, high)
    right = UNDECIDED if edge else HOLDS if low < truth < high else FAILS
    minutes = np.array([each for each, _ in runs])
    return Simulated(
        effect,
        question,
        edge,
        float(np.mean([verdict not in (right, UNDECIDED) for _, verdict in runs])),
        float(np.mean(minutes > 10)),
        float(np.mean(minutes > 60)),
        float(np.median(minutes)),
    )


def lines(rows: Iterable[Simulated]) -> list[str]:
    """Return the table as lines of text."""
    text = [f"{'question':<12}{'effect':>7}{'false':>8}{'undecided after 10 min':>24}"]
    text[0] += f"{'60 min':>9}{'median minutes':>16}"
    for row in rows:
        minutes = f"{row.minutes:.1f}" if row.minutes < math.inf else "more than 60"
        text.append(
            f"{row.question:<12}{row.effect:>7.0%}{row.false:>8.1%}{row.undecided_10:>24.1%}"
            f"{row.undecided_60:>9.1%}{minutes:>16}{'  edge' if row.edge else ''}"
        )
    return text


def show(files: Sequence[Path], seconds: float | None) -> None:
    """Print the table for the A/A pairs in ``files``, by default those in results/cells.

    ``seconds``: the time of a restart, by default as measured. Raises ParbenchError if there are
    too few restarts, or ``seconds`` is too small.
    """
    restarts = read(files or sorted(CELLS.glob("*/metrics.json")))
    if len(restarts) < FEWEST:
        raise ParbenchError(
            f"{len(restarts)} of at least {FEWEST} restarts of A/A pairs in "
            f"{'the files named' if files else CELLS}; `snakemake` measures some, with a "
            "study in config.yaml that has an A/A pair"
        )
    seconds = seconds or statistics.median(each.seconds for each in restarts)
    if seconds < 1:
        raise ParbenchError(f"a restart of {seconds:g} s: at least 1 s is needed (--seconds)")
    print(f"{RUNS:,} simulated comparisons of each kind, by {len(restarts)} restarts of A/A pairs,")
    print(f"{seconds:.0f} s each. At an edge any decided verdict is an error.")
    print(f"At most {ALPHA:.0%} of the comparisons may then be decided.")
    print(*lines(table(restarts, seconds)), sep="\n")
