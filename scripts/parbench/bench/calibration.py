"""Estimate how often verdicts err, and how long they take, with measured noise (docs/verdicts.md).

Both sides of an A/A pair are the same program, so restarts differ only by the machine's noise.
Thousands of comparisons are simulated with that noise and a known effect.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parbench.arguments import duration
from parbench.errors import ParbenchError
from parbench.files import user_path
from parbench.runs import records
from parbench.runs.records import PairRun
from parbench.verdicts.pairs import Restart, restart
from parbench.verdicts.sequential import ALPHA, hodges_lehmann, k, ratio_margin
from parbench.verdicts.terms import FEWEST, OK

CELLS = Path("results/cells")
EFFECTS = (0.0, 0.02, 0.05, 0.1, 0.2)
# Questions about a ratio, with the boundaries between the answers, as logarithms.
QUESTIONS = {"> 1": (0.0,), "within 5 %": ratio_margin(0.05)}
RUNS = 2_000
POOL = 20_000  # simulated restarts, from which runs are drawn
HOUR = 3600


@dataclass(frozen=True)
class Simulated:
    """The results of simulated comparisons for one effect and question: shares, and minutes.

    ``edge``: whether the effect is a boundary of the question, where no verdict is right.
    ``minutes``: the median until a verdict; infinite if most have none after an hour.
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
    """Simulate the values of many restarts like those measured, without effect.

    This is a smoothed bootstrap: restarts are drawn with replacement, then pairs inside each. Since
    few restarts would spread too little, a normal kernel is added (Scott's bandwidth); the result
    is scaled to mean 0 and the measured standard deviation (Silverman and Young, 1987).
    """
    values = [hodges_lehmann(each.log_ratios) for each in restarts]
    counts = np.array([len(each.log_ratios) for each in restarts])
    pairs = np.array([np.resize(each.log_ratios, counts.max()) for each in restarts])
    drawn = rng.integers(len(restarts), size=(POOL, 1))
    inside = (rng.random((POOL, int(np.median(counts)))) * counts[drawn]).astype(int)
    spread = np.std(values, ddof=1)
    kernel = spread * len(values) ** -0.2 * rng.standard_normal(POOL)
    pool = hodges_lehmann(pairs[drawn, inside]) + kernel
    return spread * (pool - pool.mean()) / pool.std()


def looks(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of `sequential.interval` after each run's (row's) values from the 4th on."""
    n = np.arange(FEWEST, values.shape[1] + 1)
    mean = values.cumsum(axis=1)[:, FEWEST - 1 :] / n
    square = (values**2).cumsum(axis=1)[:, FEWEST - 1 :] / n
    half = k(n, ALPHA) * np.sqrt((square - mean**2).clip(0) / (n - 1))
    return mean - half, mean + half


def table(restarts: Sequence[Restart], seconds: float) -> list[Simulated]:
    """Simulate comparisons of each effect and question; ``seconds``: the cost of a restart."""
    rng = np.random.default_rng(0)
    most = max(int(HOUR / seconds), FEWEST)
    low, high = looks(rng.choice(simulated(restarts, rng), (RUNS, most)))
    minutes = np.arange(FEWEST, most + 1) * seconds / 60
    return [
        _row(effect, question, low, high, minutes) for question in QUESTIONS for effect in EFFECTS
    ]


def _row(
    effect: float, question: str, low: np.ndarray, high: np.ndarray, minutes: np.ndarray
) -> Simulated:
    """Return the results of ``effect`` added to runs without one, looked at after ``minutes``."""
    boundaries, truth = QUESTIONS[question], math.log1p(effect)
    ever, first, right = first_verdicts(low + truth, high + truth, boundaries, truth)
    edge = truth in boundaries
    taken = np.where(ever, minutes[first], np.inf)
    return Simulated(
        effect,
        question,
        edge,
        float(np.mean(ever & (edge | ~right))),
        float(np.mean(taken > 10)),
        float(np.mean(taken > 60)),
        float(np.median(taken)),
    )


def first_verdicts(
    low: np.ndarray, high: np.ndarray, boundaries: Sequence[float], truth: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return whether each run ever has a verdict, at which look first, and whether it is right.

    A run has its verdict when its interval first lies in one of the parts between the boundaries.
    """
    part = np.searchsorted(boundaries, low)
    decided = part == np.searchsorted(boundaries, high)
    ever, first = decided.any(axis=1), decided.argmax(axis=1)
    right = part[np.arange(len(part)), first] == np.searchsorted(boundaries, truth)
    return ever, first, right


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


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    help_text = f"metrics.json of A/A pairs (those in {CELLS})"
    parser.add_argument("files", nargs="*", type=user_path, help=help_text)
    parser.add_argument("--seconds", type=duration, help="what a restart takes (as measured)")
    arguments = parser.parse_args()
    restarts = read(arguments.files or sorted(CELLS.glob("*/metrics.json")))
    if len(restarts) < FEWEST:
        raise ParbenchError(
            f"{len(restarts)} of at least {FEWEST} restarts of A/A pairs in "
            f"{'the files named' if arguments.files else CELLS}; `snakemake` measures some, with a "
            "study in config.yaml that has a pair of two equal sides"
        )
    seconds = arguments.seconds or statistics.median(each.seconds for each in restarts)
    if seconds < 1:
        raise ParbenchError(f"a restart of {seconds:g} s: at least 1 s is needed (--seconds)")
    print(f"{RUNS:,} simulated comparisons of each kind, by {len(restarts)} restarts of A/A pairs,")
    print(f"{seconds:.0f} s each. At an edge every verdict is false: {ALPHA:.0%} are allowed.")
    print(*lines(table(restarts, seconds)), sep="\n")
