"""Numbers of two groups, seed by seed: ratios and differences, and why there are none."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from parbench.measure.metrics import TO_PUBLISHED, Metric, Run
from parbench.verdicts.estimates import Estimate, at_most, estimate, noise_floor
from parbench.verdicts.groups import Group, fingerprints, seed
from parbench.verdicts.pairs import estimated
from parbench.verdicts.words import FAILURES, NOT_REACHED, OK

# Of a run's work: how much of it there is, and in what portions.
AMOUNT = ("train_samples", "epochs", "steps", "global_batch")

Reasons = list[str]


def speedup(group: Group, baseline: Group) -> tuple[Estimate, Reasons]:
    """Baseline's training time over the group's, and why some are missing: restart by restart where
    they took turns, else seed by seed.
    """
    if compared := group.pairs.get(baseline.id):
        return estimated(compared.values)[0], list(compared.reasons)
    pairs, reasons = _pairs(group, baseline, timed=True)
    return estimate(base["train_seconds"] / run["train_seconds"] for run, base in pairs), reasons


def throughput(group: Group, baseline: Group) -> tuple[Estimate, Reasons]:
    """Throughput over the baseline's, seed by seed, and why seeds are missing.

    It may be of batches of another size, or of fewer: then that is said.
    """
    if compared := group.pairs.get(baseline.id):  # a time is that of all samples
        rate = math.log(group.training.epochs / baseline.training.epochs)
        values = {n: value + rate for n, value in compared.values.items()}
        return estimated(values)[0], list(compared.reasons)
    pairs, reasons = _pairs(group, baseline, timed=True, but=AMOUNT)
    for run, base in pairs:
        if differ := _differing(_work(run), _work(base)):
            reasons.append(f"of unequal work: {differ}")
    key = "samples_per_second"
    return estimate(run[key] / base[key] for run, base in pairs), reasons


def efficiency(group: Group, baseline: Group) -> tuple[Estimate, Reasons]:
    """Speedup over how many times the baseline's devices the group uses."""
    share = baseline.devices / group.devices
    if compared := group.pairs.get(baseline.id):
        values = {n: value + math.log(share) for n, value in compared.values.items()}
        return estimated(values)[0], list(compared.reasons)
    pairs, reasons = _pairs(group, baseline, timed=True)
    ratios = (share * base["train_seconds"] / run["train_seconds"] for run, base in pairs)
    return estimate(ratios), reasons


def difference(group: Group, baseline: Group) -> tuple[Estimate, Reasons]:
    """Test accuracy less the baseline's, seed by seed, and why seeds are missing."""
    pairs, reasons = _pairs(group, baseline, timed=False)
    return estimate(run["test_accuracy"] - base["test_accuracy"] for run, base in pairs), reasons


# Metrics of a group and its baseline.
TIMES = {"speedup": speedup, "throughput_ratio": throughput, "parallel_efficiency": efficiency}
PAIRED = {**TIMES, "accuracy_difference": difference}


def ratios(
    metric: Metric, group: Group, baseline: Group, but: Collection[str] = ()
) -> tuple[dict[int, float], Reasons]:
    """A metric of the group's runs over the baseline's, by seed, and why seeds are missing.

    ``but``: in which keys of their work they may differ.
    """
    pairs, reasons = _pairs(group, baseline, timed=metric.depends_on_clock, but=but)
    found = {}
    for run, base in pairs:
        value, unit = metric.read(run), metric.read(base)
        if value is None or not unit:
            reasons.append(f"seed {seed(run)} has no {metric.name}")
        else:
            found[seed(run)] = value / unit
    return found, reasons


def _pairs(
    group: Group, baseline: Group, *, timed: bool, but: Collection[str] = ()
) -> tuple[list[tuple[Run, Run]], Reasons]:
    """The good runs of each seed that both have, and why seeds are missing.

    ``timed``: it is their times that are compared. ``but``: see `ratios`.
    """
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
        elif why := (_why_no_speedup if timed else _why_no_difference)(run, base, but):
            reasons.append(why)
        else:
            pairs.append((run, base))
    return pairs, reasons


def _why_no_speedup(run: Run, base: Run, but: Collection[str]) -> str:
    """Why two runs of a seed give no speedup; empty when they do."""
    ours, theirs = fingerprints(run), fingerprints(base)
    if len({*ours, *theirs}) > 1:
        ours, theirs = " and ".join(ours), " and ".join(theirs)
        return f"no speedup between machines: {ours} here, {theirs} for the baseline"
    for key in ("stack", "deployment"):
        ours, theirs = run["environment"][key], base["environment"][key]
        if ours != theirs:
            return f"no speedup between {key}s: {ours} here, {theirs} for the baseline"
    differ = _differing(_work(run), _work(base), but)
    return f"no speedup between unequal work: {differ}" if differ else ""


def _why_no_difference(run: Run, base: Run, but: Collection[str]) -> str:
    """Why the accuracies of two runs of a seed are not to be compared; empty when they are."""
    for each in (run, base):
        if not_measured := few_steps(each["cell"]["training"]["steps"]):
            return not_measured
    ours, theirs = ({**_work(each), "test_samples": _samples(each, "test")} for each in (run, base))
    differ = _differing(ours, theirs, but)
    return f"no difference between unequal work: {differ}" if differ else ""


def few_steps(steps: int | None) -> str:
    """Why no accuracy was measured; empty where it was."""
    if steps is None:
        return ""
    return f"only {steps} steps of an epoch were trained: no accuracy is measured"


def _differing(ours: Mapping, theirs: Mapping, but: Collection[str] = ()) -> str:
    return ", ".join(
        f"{key} {ours[key]} here, {theirs[key]} for the baseline"
        for key in ours
        if key not in but and ours[key] != theirs[key]
    )


def _samples(run: Run, part: str) -> Any:
    samples = run["cell"]["dataset"][f"{part}_samples"]
    return "all" if samples is None else samples


def _work(run: Run) -> dict[str, Any]:
    training = run["cell"]["training"]
    return {
        "dataset": run["cell"]["dataset"]["name"],
        "train_samples": _samples(run, "train"),
        "epochs": training["epochs"],
        "steps": "all" if training["steps"] is None else training["steps"],
        **{key: training[key] for key in ("global_batch", "image_size", "mode", "profile")},
    }


# ---------------------------------------------------------------- of one group alone


def time_to(accuracy: float, group: Group) -> tuple[Estimate, Reasons]:
    """Seconds of training until the test accuracy was first ``accuracy`` after an epoch.

    Over the good runs that measured it. Where one never got there, there is no mean, which would
    leave out the slowest: only minimum and maximum of those that did, and a sentence that counts
    the others.
    """
    times = [_seconds_to(accuracy, run) for run in group.ok if _scored(run)]
    reached = [seconds for seconds in times if seconds is not None]
    if len(reached) == len(times):
        return estimate(reached, trim=TO_PUBLISHED.clocked), []
    said = f"{NOT_REACHED} by {len(times) - len(reached)} of {len(times)} seeds"
    if not reached:
        return Estimate(0), [said]
    least, most = min(reached), max(reached)
    said += f" (the others: {' to '.join(dict.fromkeys((f'{least:.4g}', f'{most:.4g}')))} s)"
    return Estimate(len(reached), min=least, max=most), [said]


def _seconds_to(accuracy: float, run: Run) -> float | None:
    """``elapsed_seconds`` of the first epoch that ended with ``accuracy``; None without one."""
    there = (each for each in _scored(run) if at_most(accuracy, each["test_accuracy"]))
    return next((epoch["elapsed_seconds"] for epoch in there), None)


def _scored(run: Run) -> list[Mapping]:
    """The epochs after which the test accuracy was measured."""
    return [epoch for epoch in run["history"] if epoch["test_accuracy"] is not None]


def group_noise_floor(group: Group) -> tuple[Estimate, Reasons]:
    """The noise floor of a group's good runs, and why there is none."""
    places = {
        (fingerprint, run["environment"]["stack"], run["environment"]["deployment"])
        for run in group.ok
        for fingerprint in fingerprints(run)
    }
    if len(places) > 1:
        return Estimate(0), ["no noise floor: its seeds ran on different machines or software"]
    found = noise_floor(run["train_seconds"] for run in group.ok)
    return found, [] if found.n >= 2 else ["no noise floor from fewer than 2 seeds"]
