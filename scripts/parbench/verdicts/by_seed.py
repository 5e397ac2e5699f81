"""Two groups seed by seed: differences of scores, ratios of others, and why there are none."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from parbench.measure.metrics import Metric, Run
from parbench.verdicts.groups import Group, seed
from parbench.verdicts.series import Series
from parbench.verdicts.words import FAILURES, OK


def compared(metric: Metric, group: Group, baseline: Group, but: Collection[str] = ()) -> Series:
    """A metric of the group's runs beside the baseline's, where both did the same work.

    ``but``: in which keys of their work they may differ.
    """
    pairs, reasons = _pairs(group, baseline, metric.is_score, but)
    values = {}
    for run, base in pairs:
        value, unit = metric.read(run), metric.read(base)
        if metric.is_score:
            values[seed(run)] = value - unit
        elif value and unit:
            values[seed(run)] = math.log(value / unit)
        else:
            reasons.append(f"seed {seed(run)} has no {metric.name}")
    return Series(
        values,
        logs=not metric.is_score,
        cost=group.seed_seconds + baseline.seed_seconds,
        resolution=max(each.resolution(metric) for each in (group, baseline)),
        reasons=tuple(dict.fromkeys([*group.failures(), *reasons])),
    )


def _pairs(
    group: Group, baseline: Group, scored: bool, but: Collection[str]
) -> tuple[list[tuple[Run, Run]], list[str]]:
    """The good runs of each seed that both have, and why seeds are missing."""
    if baseline.not_run:
        return [], [f"the baseline {baseline.id} was not run"]
    of_seed = {seed(run): run for run in baseline.runs}
    pairs, reasons = [], []
    for run in group.ok:
        base = of_seed.get(seed(run))
        if base is None:
            reasons.append(f"the baseline has no seed {seed(run)}")
        elif base["status"] != OK:
            reasons.append(f"the baseline's seed {seed(run)}: {FAILURES[base['status']]}")
        elif why := _why_not(run, base, scored, but):
            reasons.append(why)
        else:
            pairs.append((run, base))
    return pairs, reasons


def _why_not(run: Run, base: Run, scored: bool, but: Collection[str]) -> str:
    """Why two runs of a seed are not to be compared; empty when they are."""
    if scored:
        for each in (run, base):
            if not_measured := few_steps(each["cell"]["training"]["steps"]):
                return not_measured
    ours, theirs = _work(run), _work(base)
    differ = ", ".join(
        f"{key} {ours[key]} here, {theirs[key]} for the baseline"
        for key in ours
        if key not in but and ours[key] != theirs[key]
    )
    return f"not compared, for unequal work: {differ}" if differ else ""


def few_steps(steps: int | None) -> str:
    """Why no accuracy was measured; empty where it was."""
    if steps is None:
        return ""
    return f"only {steps} steps of an epoch were trained: no accuracy is measured"


def _work(run: Run) -> dict[str, Any]:
    training, dataset = run["cell"]["training"], run["cell"]["dataset"]
    settings = ("epochs", "steps", "global_batch", "image_size", "mode", "profile")
    samples = ("train_samples", "test_samples")
    return {
        "dataset": dataset["name"],
        **{key: _all(dataset[key]) for key in samples},
        **{key: _all(training[key]) if key == "steps" else training[key] for key in settings},
    }


def _all(number: int | None) -> int | str:
    return "all" if number is None else number
