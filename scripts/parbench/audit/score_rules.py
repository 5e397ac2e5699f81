"""The audit's checks of accuracies and other scores, values printed twice, and profiles."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict

from parbench.audit.arithmetic import (
    SCORES,
    Certainty,
    DatasetAssumptions,
    Found,
    Rows,
    against,
    by_configuration,
    grouped,
    of_metrics,
    quantity_of,
)
from parbench.plan.published import Published
from parbench.words import count

DIGITS = 3  # with fewer, two values are sometimes equal by chance
SPREAD = 0.01  # the least range assumed for one model: of scores, or as a share of times
CHANCE = 0.05  # anything less probable is hardly chance
FLOATS = 1e-9  # tolerance for rounding of floats


def _agree(one: Published, other: Published) -> bool:
    return abs(one.value - other.value) <= one.rounding + other.rounding + FLOATS


def conflicting_values(rows: Rows, assumptions: DatasetAssumptions) -> Found:
    """Find configurations that are printed with more than one value of a metric."""
    for first, *more in grouped(rows, lambda row: (row.configuration, row.metric)):
        assumptions.compares(*(first, *more) if more else ())
        others = {row.value: row for row in reversed(more) if not _agree(first, row)}
        if others:
            different = [first, *reversed(others.values())]
            values = " and ".join(f"{row.shown} ({row.table})" for row in different)
            says = f"{first}: {first.metric} is {values}"
            yield against("two values for one thing", Certainty.LIKELY, different, says)


def equal_values(rows: Rows, assumptions: DatasetAssumptions) -> Found:
    """Check that different runs do not have the same score, time or throughput to the last digit,
    least of all the same two configurations for several models or several metrics.

    Two values are equal by chance with probability 1/n, where n is the number of steps of the last
    digit between the model's smallest and largest value.
    """
    equals: dict[
        tuple[object, ...], list[list[Published]]
    ] = {}  # by the configurations, one list per metric
    chances: defaultdict[tuple[object, ...], list[float]] = defaultdict(
        list
    )  # by the configurations without the model
    for alike in grouped(
        list(filter(_is_precise, rows)), lambda row: (row.study, row.model, row.metric)
    ):
        runs = [first for first, *_ in grouped(alike, lambda row: row.configuration)]
        assumptions.compares(*runs if len(runs) > 1 else ())
        values = [row.value for row in runs]
        most = max(values) if _is_timed(runs[0].metric) else 1
        spread = max(max(values) - min(values), SPREAD * most)
        for same in grouped(runs, lambda row: float(f"{row.value:.9g}")):
            if len(same) > 1:
                ways = same[0].study, *((row.hardware, row.way) for row in same)
                steps = spread / (2 * same[0].rounding)
                chances[ways].append(min(1.0, math.comb(len(values), 2) / steps))
                equals.setdefault(tuple(row.configuration for row in same), []).append(same)
    for found in equals.values():
        first = found[0]
        ways = first[0].study, *((row.hardware, row.way) for row in first)
        values = " and ".join(f"{same[0].metric} {same[0].value:g}" for same in found)
        says = f"{values} of {' and of '.join(map(str, first))}"
        certainty = Certainty.LIKELY if math.prod(chances[ways]) < CHANCE else Certainty.WEAK
        yield against("equal to the last digit", certainty, itertools.chain(*found), says)


def _is_precise(row: Published) -> bool:
    """Return whether a row prints enough digits of a score, time or rate to tell it from others."""
    if re.fullmatch(SCORES, row.metric):
        return 0 < row.rounding < 10.0**-DIGITS
    return _is_timed(row.metric) and 0 < row.rounding <= 0.5 * row.value * 10.0 ** (1 - DIGITS)


def _is_timed(metric: str) -> bool:
    """Return whether a metric is a time or a rate of a run, not of one of its operators."""
    quantity = quantity_of(metric)
    return quantity is not None and quantity.is_timed


def balanced(rows: Rows, assumptions: DatasetAssumptions) -> Found:
    """Check that, on a balanced test set, macro recall (the mean of the classes' recalls) equals
    accuracy (the share of hits), and that macro specificity follows from it.

    Each miss is a false positive of one class, among (classes - 1) times as many negatives:
    specificity is 1 - (1 - recall) / (classes - 1). Where two agree, the third is wrong or comes
    from other samples, such as one rank's share of the test set.
    """
    others = assumptions.classes - 1
    names = ("test_recall_macro", "test_accuracy", "test_specificity_macro")
    for row_by_metric in by_configuration(rows) if assumptions.balanced else ():
        recall, accuracy, specificity = map(row_by_metric.get, names)
        bases = [row for row in (recall, accuracy) if row]
        measured = [*bases, specificity] if specificity else bases
        assumptions.compares(*measured if len(measured) > 1 else ())
        wrong: list[Published] = []
        if specificity:
            wrong += [base for base in bases if not _follows(specificity, base, others)]
        differ = recall and accuracy and not _agree(recall, accuracy)
        if recall and accuracy and differ:
            says = (
                f"{accuracy}: accuracy {accuracy.value:g} and macro recall {recall.value:g}, "
                "which must be equal on a balanced test set"
            )
            contradicting = [accuracy, recall]
            if specificity and len(wrong) == 1:
                contradicting = [*contradicting, specificity]
                says += (
                    f"; macro specificity {specificity.value:g} does not fit {wrong[0].metric}, "
                    "which is wrong or comes from other samples"
                )
            yield against("recall is accuracy", Certainty.LIKELY, contradicting, says)
        if specificity and wrong and wrong == bases:
            settled = len(bases) == 2 and not differ
            says = (
                f"{bases[0]}: macro specificity {specificity.value:g} is printed; "
                f"{bases[0].metric} {bases[0].value:g} of {assumptions.classes} balanced classes "
                f"implies {1 - (1 - bases[0].value) / others:.4f}"
            )
            says += ", and so does test_accuracy" * settled
            contradicting = (*bases, specificity)
            yield against("specificity follows from recall", Certainty.LIKELY, contradicting, says)


def _follows(specificity: Published, recall: Published, others: int) -> bool:
    """Return whether macro specificity follows from ``recall``; ``others``: the other classes."""
    slack = specificity.rounding + recall.rounding / others + FLOATS
    return abs(specificity.value - (1 - (1 - recall.value) / others)) <= slack


def f1(rows: Rows, assumptions: DatasetAssumptions) -> Found:
    """Check that F1 is within what precision P and recall R allow, also as a mean over classes.

    It is at most 2PR / (P + R), since the harmonic mean is concave, and at least P + R - 1. As
    there are no more predictions than samples, macro F1 of a balanced test set is at least
    2RR / (1 + R).
    """
    for row_by_metric in by_configuration(rows):
        for average in ("", "_macro", "_weighted"):
            names = (f"test_{score}{average}" for score in ("f1", "precision", "recall"))
            score, p, r = (row_by_metric.get(name) for name in names)
            if not score or not p or not r:
                continue
            assumptions.compares(score, p, r)
            most = 2 * p.most * r.most / (p.most + r.most) if p.most + r.most else 0.0
            least = max(0.0, p.least + r.least - 1)
            certainty = Certainty.CERTAIN
            if assumptions.balanced and average == "_macro" and least <= score.most <= most:
                least, certainty = max(least, 2 * r.least**2 / (1 + r.least)), Certainty.LIKELY
            if score.least > most + FLOATS or score.most < least - FLOATS:
                says = (
                    f"{score}: F1 {score.value:g} is printed; precision {p.value:g} and recall "
                    f"{r.value:g} allow {least:.4f} to {most:.4f}"
                )
                yield against("F1 of another precision or recall", certainty, (score, p, r), says)


def operators(rows: Rows, assumptions: DatasetAssumptions) -> Found:
    """Check that operators' times do not exceed the total, nor are host times on an accelerator."""
    for configuration in grouped(rows, lambda row: row.configuration):
        parts = [row for row in configuration if row.metric.startswith("operator_self_seconds:")]
        total, rounding = sum(row.value for row in parts), sum(row.rounding for row in parts)
        whole = next(iter(of_metrics(configuration, "profile_self_seconds")), None)
        assumptions.compares(*(whole, *parts) if whole is not None and parts else ())
        if whole is not None and total - rounding > whole.most:
            says = (
                f"{whole}: the self times of {count(len(parts), 'operator')} add up to "
                f"{total:.4g} s, more than the {whole.value:g} s of all"
            )
            yield against("parts and the whole", Certainty.CERTAIN, (whole, *parts), says)
        host = [row for row in configuration if re.search(r"self[- ]cpu", row.note, re.IGNORECASE)]
        if host and host[0].hardware.upper() != "CPU":
            are = "time is" if len(host) == 1 else "times are"
            says = (
                f"{host[0]}: {len(host)} {are} printed as Self-CPU, which is the host's time "
                "and does not measure the accelerator"
            )
            yield against("another device's clock", Certainty.CERTAIN, host, says)
