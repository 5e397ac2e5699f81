"""Comparisons of times by pairs: what each restart says, and all of them (docs/verdicts.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import numpy as np

from parbench.measure.metrics import Run
from parbench.verdicts import sequential
from parbench.verdicts.estimates import Estimate
from parbench.verdicts.sequential import Interval
from parbench.verdicts.words import OK, SAME, UNDECIDED

LEAST_PAIRS = 2  # of a restart, that were not disturbed; where there are fewer, all of them count


@dataclass(frozen=True)
class Restart:
    """One restart of a comparison.

    ``value``: the logarithm of how many times faster the variant is than its baseline, of the pairs
    that were not disturbed (of all, where fewer than 2 were not); ``of_all``: of all pairs;
    ``log_ratios``: those of ``value``; ``pairs`` and ``disturbed``: how many there were; ``bound``:
    the times of the baseline's models over the longest of them; ``seconds``: from start to end.
    """

    number: int
    value: float
    of_all: float
    log_ratios: tuple[float, ...]
    pairs: int
    disturbed: int
    bound: float
    seconds: float


def restart(run: Run) -> Restart:
    """What metrics.json of a pair that ended well says."""
    cell = run["cell"]
    epochs = [side["training"]["epochs"] for side in cell["sides"]]
    times: dict[int, dict[int, float]] = {}
    disturbed = {each["pair"] for each in run["slices"] if each["disturbed"]}
    for each in run["slices"]:
        # Of a whole training, up to a factor that all sides share.
        seconds = epochs[each["side"]] * each["seconds"] / each["samples"]
        times.setdefault(each["pair"], {})[each["side"]] = seconds
    first = cell["variants"]
    ratios = {
        pair: math.log(sum(row[n] for n in row if n >= first) / sum(row[n] for n in range(first)))
        for pair, row in times.items()
    }
    calm = [ratio for pair, ratio in ratios.items() if pair not in disturbed]
    kept = tuple(calm if len(calm) >= LEAST_PAIRS else ratios.values())
    alone = [
        float(np.median([row[n] for row in times.values()])) for n in range(first, len(epochs))
    ]
    started, finished = (datetime.fromisoformat(run[key]) for key in ("started", "finished"))
    return Restart(
        cell["seed"],
        float(sequential.hodges_lehmann(kept)),
        float(sequential.hodges_lehmann(list(ratios.values()))),
        kept,
        len(ratios),
        len(disturbed),
        sum(alone) / max(alone),
        (finished - started).total_seconds(),
    )


@dataclass(frozen=True)
class Compared:
    """A variant beside its baseline, with its restarts; ``reasons``: why some gave nothing."""

    restarts: tuple[Restart, ...]
    reasons: tuple[str, ...]
    cells: tuple[str, ...]

    @classmethod
    def of(cls, entry: Mapping, runs: Mapping[str, Run]) -> Compared:
        """That of ``entry`` among a plan's pairs; ``runs``: metrics.json by cell."""
        mine = [runs[cell] for cell in entry["cells"] if cell in runs]
        failed = (f"restart {run['cell']['seed']}: {run['reason']}" for run in mine if not _ok(run))
        reasons = filter(None, [entry["not_run"], *failed])
        return cls(tuple(map(restart, filter(_ok, mine))), tuple(reasons), tuple(entry["cells"]))

    @cached_property
    def values(self) -> dict[int, float]:
        """By restart."""
        return {each.number: each.value for each in self.restarts}

    @property
    def bound(self) -> float:
        """What models side by side may gain at most: their times over the longest of them."""
        return max((each.bound for each in self.restarts), default=math.inf)

    @property
    def cost(self) -> float:
        """Seconds of a restart; 0 without any."""
        return float(np.median([each.seconds for each in self.restarts] or [0.0]))

    def reading(self, share: float) -> str:
        """Whether the variant is faster, slower or, within ``share``, equal; else what it takes."""
        measured, found = estimated(self.values)
        if found is None:
            return f"{UNDECIDED}: {measured.too_few}"
        if boundaries := self.undecided(share):
            return f"{UNDECIDED}: {sequential.outlook(found, boundaries, self.cost)}"
        if sequential.within(found, sequential.ratio_margin(share)) == SAME:
            return f"equal within {share:.0%}"
        return "faster" if found.low > 0 else "slower"

    def undecided(self, share: float) -> tuple[float, ...]:
        """The boundaries, of log ratios, that more restarts may leave out: 1, or those of equality,
        whichever is farther from the estimate. None where it is told."""
        found, margin = sequential.interval(self.values.values()), sequential.ratio_margin(share)
        told = found and (
            sequential.within(found, margin) == SAME
            or sequential.beyond(found, ">", 0.0) != UNDECIDED
        )
        if told:
            return ()
        return margin if found and abs(found.mean) < margin[1] / 2 else (0.0,)


def _ok(run: Run) -> bool:
    return run["status"] == OK


def estimated(values: Mapping[int, float]) -> tuple[Estimate, Interval | None]:
    """Ratios of restarts whose logarithms are ``values``, for a table, and their interval."""
    found = sequential.interval(values.values())
    ratios = np.exp(list(values.values()))
    if not len(ratios):
        return Estimate(0, of="restarts"), None
    spread = float(ratios.std(ddof=1)) if len(ratios) > 1 else math.nan
    mean = math.exp(float(np.mean(list(values.values()))))
    ends = (math.exp(found.low), math.exp(found.high)) if found else (math.nan, math.nan)
    least, most = float(ratios.min()), float(ratios.max())
    return Estimate(len(ratios), mean, spread, *ends, least, most, of="restarts"), found
