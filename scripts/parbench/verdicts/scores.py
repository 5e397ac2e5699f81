"""The audit's checks of accuracies and other scores, values printed twice, and profiles."""

from __future__ import annotations

import math
import re
from collections import defaultdict

from parbench.plan.published import Published
from parbench.verdicts.arithmetic import (
    Found,
    Granted,
    Rows,
    Sure,
    against,
    by_configuration,
    grouped,
    of_metrics,
)

DIGITS = 3  # with fewer, two accuracies are sometimes equal by chance
SPREAD = 0.01  # the least range assumed for the accuracies of one model
CHANCE = 0.05  # anything less probable is hardly chance
FLOATS = 1e-9  # tolerance for rounding of floats


def _agree(one: Published, other: Published) -> bool:
    return abs(one.value - other.value) <= one.rounding + other.rounding + FLOATS


def two_values(rows: Rows, granted: Granted) -> Found:
    """Check that one configuration has one value of a metric."""
    for first, *more in grouped(rows, lambda row: (row.configuration, row.metric)):
        others = {row.value: row for row in reversed(more) if not _agree(first, row)}
        if others:
            different = [first, *reversed(others.values())]
            values = " and ".join(f"{row.shown} ({row.table})" for row in different)
            says = f"{first}: {first.metric} is {values}"
            yield against("two values for one thing", Sure.LIKELY, different, says)


def equal_accuracies(rows: Rows, granted: Granted) -> Found:
    """Check that different runs do not end with the same accuracy to the last digit, least of all
    the same two configurations for several models.

    Two accuracies are equal by chance with probability 1/n, where n is the number of steps of the
    last digit between the model's smallest and largest accuracy.
    """
    accuracies = of_metrics(rows, "test_accuracy")
    precise = [row for row in accuracies if 0 < row.rounding < 10.0**-DIGITS]
    equals, chances = [], defaultdict(list)  # by the configurations, but for the model
    for of_model in grouped(precise, lambda row: (row.study, row.model)):
        values = [first.value for first, *_ in grouped(of_model, lambda row: row.configuration)]
        spread = max(max(values) - min(values), SPREAD)
        for alike in grouped(of_model, lambda row: round(row.value, 9)):
            different = [first for first, *_ in grouped(alike, lambda row: row.configuration)]
            if len(different) > 1:
                ways = different[0].study, *((row.hardware, row.way) for row in different)
                steps = spread / (2 * different[0].rounding)
                chances[ways].append(min(1.0, math.comb(len(values), 2) / steps))
                equals.append((different, ways))
    for different, ways in equals:
        listed = " and of ".join(map(str, different))
        says = f"test accuracy {different[0].value:g} of {listed}"
        sure = Sure.LIKELY if math.prod(chances[ways]) < CHANCE else Sure.WEAK
        yield against("equal to the last digit", sure, different, says)


def balanced(rows: Rows, granted: Granted) -> Found:
    """Check that, on a balanced test set, macro recall (the mean of the classes' recalls) equals
    accuracy (the share of hits), and that macro specificity follows from it.

    Each miss is a false positive of one class, among (classes - 1) times as many negatives:
    specificity is 1 - (1 - recall) / (classes - 1). Two that agree show that the third is wrong.
    """
    others = granted.classes - 1
    names = ("test_recall_macro", "test_accuracy", "test_specificity_macro")
    for row_by_metric in by_configuration(rows) if granted.balanced else ():
        recall, accuracy, specificity = map(row_by_metric.get, names)
        bases, wrong = [row for row in (recall, accuracy) if row], []
        for base in bases if specificity else ():
            slack = specificity.rounding + base.rounding / others + FLOATS
            if abs(specificity.value - (1 - (1 - base.value) / others)) > slack:
                wrong.append(base)
        differ = len(bases) == 2 and not _agree(*bases)
        if differ:
            says = (
                f"{accuracy}: accuracy {accuracy.value:g} and macro recall {recall.value:g}, "
                "which are one number on a balanced test set"
            )
            contradicting, sure = [accuracy, recall], Sure.LIKELY
            if len(wrong) == 1:
                contradicting, sure = [*contradicting, specificity], Sure.CERTAIN
                says += f"; by macro specificity {specificity.value:g}, {wrong[0].metric} is wrong"
            yield against("recall is accuracy", sure, contradicting, says)
        if wrong and wrong == bases:
            settled = len(bases) == 2 and not differ
            says = (
                f"{bases[0]}: macro specificity {specificity.value:g} is printed; "
                f"{bases[0].metric} {bases[0].value:g} of {granted.classes} balanced classes "
                f"makes it {1 - (1 - bases[0].value) / others:.4f}"
            )
            says += ", and so does test_accuracy: it is wrong" * settled
            sure = Sure.CERTAIN if settled else Sure.LIKELY
            yield against("specificity follows from recall", sure, (*bases, specificity), says)


def f1(rows: Rows, granted: Granted) -> Found:
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
            most = 2 * p.most * r.most / (p.most + r.most) if p.most + r.most else 0.0
            least = max(0.0, p.least + r.least - 1)
            sure = Sure.CERTAIN
            if granted.balanced and average == "_macro" and least <= score.most <= most:
                least, sure = max(least, 2 * r.least**2 / (1 + r.least)), Sure.LIKELY
            if score.least > most + FLOATS or score.most < least - FLOATS:
                says = (
                    f"{score}: F1 {score.value:g} is printed; precision {p.value:g} and recall "
                    f"{r.value:g} allow {least:.4f} to {most:.4f}"
                )
                yield against("F1 of another precision or recall", sure, (score, p, r), says)


def operators(rows: Rows, granted: Granted) -> Found:
    """Check that operators' times do not exceed the total, nor are the host's on an accelerator."""
    for configuration in grouped(rows, lambda row: row.configuration):
        parts = [row for row in configuration if row.metric.startswith("operator_self_seconds:")]
        total, rounding = sum(row.value for row in parts), sum(row.rounding for row in parts)
        whole = next(iter(of_metrics(configuration, "profile_self_seconds")), None)
        if whole is not None and total - rounding > whole.most:
            says = (
                f"{whole}: the self times of {len(parts)} operators add up to {total:.4g} s, more "
                f"than the {whole.value:g} s of all"
            )
            yield against("parts and the whole", Sure.CERTAIN, (whole, *parts), says)
        host = [row for row in configuration if re.search(r"self[- ]cpu", row.note, re.IGNORECASE)]
        if host and host[0].hardware.upper() != "CPU":
            says = (
                f"{host[0]}: {len(host)} times are printed as Self-CPU, which is the host's time "
                "and does not measure the accelerator"
            )
            yield against("another device's clock", Sure.CERTAIN, host, says)
