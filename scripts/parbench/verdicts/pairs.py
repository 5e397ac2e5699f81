"""Comparisons of times in pairs: the value of each restart, and of all (docs/verdicts.md)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

import numpy as np

# scipy has no type stubs.
from scipy import stats  # pyright: ignore[reportMissingTypeStubs]

from parbench.cell import Training
from parbench.plan.study_plan import PairGroup
from parbench.runs.records import PairRun
from parbench.verdicts import sequential
from parbench.verdicts.ratios import ratio_text, with_interval
from parbench.verdicts.sequential import HOLDS, Series
from parbench.verdicts.terms import FAILURES, FEWEST, OK, SHARED_NODES

LEAST_PAIRS = 2  # of slices, undisturbed, in a restart; if there are fewer, all of them count
BIASED = 0.01  # alpha of the test whether an A/A pair is biased
DRIFT = 0.01  # alpha of the test whether the restarts of a pair drift
EQUAL = 0.05  # the margin within which its two equal sides must agree
NO_ENERGY = "the energy of its devices was not read"
PAUSE = timedelta(hours=6)  # between two restarts; a longer one begins another session


@dataclass(frozen=True)
class Restart:
    """One restart of a comparison.

    ``value``: the log of the baseline's time over the variant's, estimated from the undisturbed
    pairs of slices (from all, if fewer than 2 are undisturbed); ``of_all``: the same from all;
    ``log_ratios``: those behind ``value``; ``slice_pairs``, ``disturbed``: how many pairs of slices
    there were, and how many of them were disturbed; ``bound``: the sum of the baseline models'
    times over the longest; ``started``, ``finished``: in UTC.
    """

    number: int
    value: float
    of_all: float
    log_ratios: tuple[float, ...]
    slice_pairs: int
    disturbed: int
    bound: float
    started: datetime
    finished: datetime

    @property
    def uses_disturbed(self) -> bool:
        """Whether disturbed pairs of slices count, since too few others remain."""
        return bool(self.disturbed) and len(self.log_ratios) == self.slice_pairs

    @property
    def seconds(self) -> float:
        """The seconds from start to end."""
        return (self.finished - self.started).total_seconds()


def lengths_of(trainings: Iterable[Training]) -> list[int]:
    """Return each side's epochs, which its seconds per sample are multiplied by; all 1 if some side
    does only a few steps of each epoch, since then no whole trainings are compared."""
    settings = list(trainings)
    all_steps = all(training.steps is None for training in settings)
    return [training.epochs if all_steps else 1 for training in settings]


def restart(run: PairRun, quantity: str = "seconds") -> Restart:
    """Return the restart that ``run``, which ended well, measured.

    ``quantity``: the attribute of a slice that is compared, its seconds or its joules.
    """
    trainings = [side.training for side in run.cell.sides]
    lengths = [1] * len(trainings) if run.cell.inference else lengths_of(trainings)
    times: dict[int, dict[int, float]] = {}
    disturbed = {entry.pair for entry in run.slices if entry.disturbed}
    for entry in run.slices:
        # The time of a whole training, up to a factor that all sides share.
        duration = lengths[entry.side] * getattr(entry, quantity) / entry.samples
        times.setdefault(entry.pair, {})[entry.side] = duration
    first_baseline = run.cell.variants
    ratios = {
        pair: math.log(
            sum(row[n] for n in row if n >= first_baseline)
            / sum(row[n] for n in range(first_baseline))
        )
        for pair, row in times.items()
    }
    medians = [
        float(np.median([row[n] for row in times.values()]))
        for n in range(first_baseline, len(lengths))
    ]
    bound = sum(medians) / max(medians)
    ends = map(datetime.fromisoformat, (run.started, run.finished))
    return restart_of(run.cell.seed, ratios, disturbed, bound, *ends)


def restart_of(
    number: int,
    ratios: Mapping[int, float],
    disturbed: Collection[int],
    bound: float,
    started: datetime,
    finished: datetime,
) -> Restart:
    """Return the restart whose pairs of slices have these log ``ratios``, some ``disturbed``."""
    undisturbed = [ratio for pair, ratio in ratios.items() if pair not in disturbed]
    log_ratios = tuple(undisturbed if len(undisturbed) >= LEAST_PAIRS else ratios.values())
    return Restart(
        number,
        sequential.hodges_lehmann(log_ratios),
        sequential.hodges_lehmann(list(ratios.values())),
        log_ratios,
        len(ratios),
        len(disturbed),
        bound,
        started,
        finished,
    )


@dataclass(frozen=True)
class Compared:
    """A variant compared with its baseline, by restart.

    ``reasons``: why there are no restarts, why some gave no value or may have been disturbed by
    other jobs; ``failed``: how many restarts failed, by the word for the failure.
    """

    restarts: tuple[Restart, ...]
    reasons: tuple[str, ...]
    cells: tuple[str, ...]
    failed: Mapping[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def of(
        cls, pair: PairGroup, runs: Mapping[str, PairRun], quantity: str = "seconds"
    ) -> Compared:
        """Return the comparison of a planned pair; ``runs``: by cell.

        With ``quantity`` joules, compare energy, over the restarts that measured it.
        """
        own_runs = [runs[cell] for cell in pair.cells if cell in runs]
        failures = (f"restart {run.cell.seed}: {run.reason}" for run in own_runs if run.reason)
        good = list(filter(_ok, own_runs))
        known = [r for r in good if all(getattr(each, quantity) is not None for each in r.slices)]
        unknown = NO_ENERGY if len(known) < len(good) else None
        shared = SHARED_NODES if any(run.shared for run in good) else None
        reasons = filter(None, [pair.not_run, *failures, shared, unknown])
        failed = Counter(FAILURES[run.status] for run in own_runs if not _ok(run))
        restarts = tuple(restart(run, quantity) for run in known)
        return cls(restarts, tuple(reasons), tuple(pair.cells), failed)

    @cached_property
    def series(self) -> Series:
        """The log of how many times faster the variant is, by restart."""
        return Series(
            {each.number: each.value for each in self.restarts},
            "restarts",
            logs=True,
            cost=float(np.median([each.seconds for each in self.restarts] or [0.0])),
            reasons=self.reasons,
            drifts=self.drifts,
        )

    @cached_property
    def _in_order(self) -> list[float]:
        """The values of the restarts in the order in which they were measured."""
        return [each.value for each in sorted(self.restarts, key=lambda each: each.started)]

    @cached_property
    def drifts(self) -> bool:
        """Whether the values rise or fall with the order of the restarts, by Kendall's rank
        correlation. Fewer than 6 restarts cannot show it."""
        if len(self._in_order) < FEWEST:
            return False
        correlation = cast(Any, stats.kendalltau)(range(len(self._in_order)), self._in_order)
        return bool(correlation.pvalue < DRIFT)  # nan if all values are equal

    @property
    def drift(self) -> str:
        """How the restarts drift: ``drift: 0.95 in the first half, 1.02 in the second``; empty if
        they do not."""
        if not self.drifts:
            return ""
        half = len(self._in_order) // 2
        halves = (self._in_order[:half], self._in_order[-half:])
        first, second = (ratio_text(math.exp(float(np.mean(values)))) for values in halves)
        return f"drift: {first} in the first half, {second} in the second"

    @property
    def bound(self) -> float:
        """The upper bound on the gain of models side by side: their total time over the longest."""
        return max((each.bound for each in self.restarts), default=math.inf)

    @cached_property
    def sessions(self) -> int:
        """The number of sessions, between which the pair rested for more than PAUSE."""
        in_order = sorted(self.restarts, key=lambda each: each.started)
        return bool(in_order) + sum(
            later.started - earlier.finished > PAUSE for earlier, later in pairwise(in_order)
        )

    @cached_property
    def days(self) -> int:
        """The number of days, by UTC, on which a restart began."""
        return len({each.started.date() for each in self.restarts})

    @property
    def measured_over(self) -> str:
        """Over how long the restarts were measured: ``3 sessions, 2 days``, ``12 min``, ``4.8
        h``; empty without any."""
        if not self.restarts:
            return ""
        if self.sessions > 1:
            return f"{self.sessions} sessions, {self.days} day{'s' * (self.days > 1)}"
        ends = max(r.finished for r in self.restarts) - min(r.started for r in self.restarts)
        minutes = math.ceil(ends.total_seconds() / 60)
        return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"

    def reading(self, share: float) -> str:
        """Return whether it is faster, slower or equal within ``share``; or what deciding takes."""
        return self.series.reading(share, "faster", "slower")

    # ---------------------------------------------------------------- A/A pairs: equal sides

    @property
    def biased(self) -> bool:
        """Whether an A/A pair is biased, so that taking turns favors one side."""
        interval = self.series.interval(BIASED)
        return interval is not None and (interval.low > 0 or interval.high < 0)

    @property
    def is_equal(self) -> bool:
        """Whether an A/A pair is shown to be equal."""
        return sequential.within(self.series.interval(), self.series.margin(EQUAL)) == HOLDS

    @property
    def equal_reading(self) -> str:
        """What an A/A pair is: ``equal within 5 %``, ``biased: ...``, ``not checked: ...``."""
        if few := self.series.too_few:
            return f"not checked: {few}"
        if self.biased:
            return "biased: pairs of its kind decide nothing"
        return f"equal within {EQUAL:.0%}" if self.is_equal else "not checked: too wide"

    @property
    def equality(self) -> str:
        """The same with its numbers: ``1.002 (0.990 to 1.014) of 4 restarts: equal within 5 %``."""
        few = self.series.too_few
        return self.equal_reading if few else f"{self.numbers}: {self.equal_reading}"

    @property
    def numbers(self) -> str:
        """The ratio and its interval: ``1.002 (0.990 to 1.014) of 4 restarts``."""
        return f"{with_interval(self.series, places=3)} of {self.series.seeds} restarts"


def disturbance(compared: Iterable[Compared]) -> str:
    """Return how many pairs of slices other programs disturbed, and where they count for lack of
    others; empty if none."""
    compared = list(compared)
    pairs, disturbed = _counted(compared)
    text = f"{disturbed} of {pairs} pairs of slices disturbed by other programs"
    used = using_disturbed(restart for each in compared for restart in each.restarts)
    return (text + f", {used}" * bool(used)) * bool(disturbed)


def caveats(compared: Compared) -> str:
    """Return how many pairs of slices other programs disturbed, and how the restarts drift; empty
    if neither."""
    return "; ".join(filter(None, (disturbance([compared]), compared.drift)))


def using_disturbed(restarts: Iterable[Restart]) -> str:
    """Return in how many restarts disturbed pairs of slices count, as too few others remain; empty
    if in none."""
    uses = [each.uses_disturbed for each in restarts]
    where = f"in {sum(uses)} of {len(uses)} restarts"
    return f"counted {where}, where fewer than {LEAST_PAIRS} others remained" * any(uses)


def mostly_disturbed(compared: Iterable[Compared]) -> bool:
    """Return whether other programs disturbed at least half of the pairs of slices."""
    pairs, disturbed = _counted(compared)
    return bool(disturbed) and 2 * disturbed >= pairs


def _counted(compared: Iterable[Compared]) -> tuple[int, int]:
    """Return the numbers of pairs of slices and of disturbed ones."""
    restarts = [restart for each in compared for restart in each.restarts]
    return sum(each.slice_pairs for each in restarts), sum(each.disturbed for each in restarts)


def _ok(run: PairRun) -> bool:
    return run.status == OK
