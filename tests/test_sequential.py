"""The verdict rule and its calibration: error rates and words, never how long it takes."""

from __future__ import annotations

import math
import re
from dataclasses import astuple
from functools import partial

import numpy as np
import pytest

import constructed
from parbench.__main__ import main
from parbench.bench.calibration import looks
from parbench.plan import places
from parbench.verdicts.sequential import (
    ALPHA,
    FAILS,
    HOLDS,
    centers,
    hodges_lehmann,
    interval,
    k,
    needed,
    of_claim,
    outlook,
    ratio_margin,
    within,
)
from parbench.verdicts.terms import TOO_CLOSE, UNDECIDED

ABOVE_0 = (0.0, math.inf)
SPREAD = np.array([-1.0, 1.0, -1.0, 1.0, -1.0, 1.0])


def around(mean, half):
    """Return six values whose interval is ``mean`` plus and minus ``half``."""
    found = mean + SPREAD * half * math.sqrt(6) / (k(6) * SPREAD.std(ddof=1))
    made = interval(found)
    assert (made.low, made.high) == pytest.approx((mean - half, mean + half))
    return found


def test_widths_are_those_of_the_formula():
    expected = {4: 5.28, 5: 4.79, 6: 4.50, 7: 4.31, 8: 4.18, 16: 3.78, 32: 3.64}
    assert {n: float(k(n)) for n in expected} == pytest.approx(expected, abs=0.01)


def test_hodges_lehmann_by_hand():
    # Pairwise means of 1, 2, 10 in order: 1, 1.5, 2, 5.5, 6, 10.
    assert hodges_lehmann([10, 1, 2]) == pytest.approx((2 + 5.5) / 2)
    assert centers(np.array([[10.0, 1, 2], [4, 4, 4]])) == pytest.approx([3.75, 4])


@pytest.mark.parametrize("shape", ["normal", "heavy"])
def test_an_interval_that_is_looked_at_again_and_again_leaves_the_truth_out_at_most_in_5_percent(
    shape,
):
    rng = np.random.default_rng(1)
    drawn = rng.standard_normal((2000, 50)) if shape == "normal" else rng.standard_t(3, (2000, 50))
    misses = sum(
        any(not (made := interval(run[:n])).low <= 0 <= made.high for n in range(4, 51))
        for run in drawn
    )
    assert misses / 2000 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 2000)


def test_fewer_than_four_values_decide_nothing():
    assert interval([1.0, 1.0, 1.0]) is None
    assert within(None, (-1, 1)) == within(None, ABOVE_0) == UNDECIDED


@pytest.mark.parametrize(
    ("mean", "half", "region", "word"),
    [
        (10, 1, (7, math.inf), HOLDS),
        (4, 1, (7, math.inf), FAILS),
        (7.5, 1, (7, math.inf), UNDECIDED),
        (4, 1, (-math.inf, 7), HOLDS),
        (10, 1, (-math.inf, 7), FAILS),
        (6.5, 1, (-math.inf, 7), UNDECIDED),
        (math.log(1.03), 0.01, ratio_margin(0.05), HOLDS),
        (math.log(1.03), 0.04, ratio_margin(0.05), UNDECIDED),
        (math.log(1.0), 0.2, ratio_margin(0.05), UNDECIDED),
        (math.log(1.2), 0.05, ratio_margin(0.05), FAILS),
        (math.log(0.8), 0.05, ratio_margin(0.05), FAILS),
    ],
)
def test_a_verdict_is_where_the_interval_lies(mean, half, region, word):
    assert within(interval(around(mean, half)), region) == word


def test_a_resolution_bounds_the_spread_of_identical_values():
    identical = [0.9] * 4
    assert interval(identical).high == pytest.approx(0.9)
    made = interval(identical, resolution=1 / 100)
    assert made.high - made.mean == pytest.approx(k(4) / 100 / 2)


def comparisons(*several):
    """Return, for each of ``several`` samples, a function: alpha to the verdict "above 0"."""

    def above(values, alpha):
        return within(interval(values, alpha), ABOVE_0)

    return [partial(above, values) for values in several]


def test_a_claim_of_several_comparisons():
    # The interval of `clear` excludes 0 by far, that of `barely` only at alpha 0.05.
    clear, barely, unknown = (around(mean, 1) for mean in (9.0, 1.05, 0.5))
    for several, word in [
        ((clear, barely), HOLDS),
        ((clear, unknown), UNDECIDED),
        ((clear, clear, -clear), FAILS),
        ((-barely,), FAILS),
        ((clear, clear, -barely), UNDECIDED),  # one of three, but not at 0.05 / 3
        ((-barely, -barely, -barely), FAILS),  # all three, each at 0.05
    ]:
        assert of_claim(comparisons(*several)) == word


def test_a_verdict_is_firm_that_passes_among_all_claims_of_a_report():
    clear, barely, unknown = (comparisons(around(mean, 1)) for mean in (9.0, 1.05, 0.5))
    assert of_claim(clear, ALPHA / 20) == HOLDS
    assert of_claim(barely) == HOLDS
    assert of_claim(barely, ALPHA / 20) == of_claim(unknown) == UNDECIDED


@pytest.mark.parametrize("region", [ABOVE_0, (-2.0, 2.0), (-0.2, 0.2)])
def test_as_many_values_as_are_needed_decide(region):
    def standing(n):
        """Return the interval of ``n`` values of mean 0.5 and standard deviation 1."""
        values = np.random.default_rng(n).standard_normal(n)
        return interval(0.5 + (values - values.mean()) / values.std(ddof=1))

    n = needed(standing(5), region)
    assert n > 5
    assert within(standing(n), region) != UNDECIDED
    assert within(standing(n - 1), region) == UNDECIDED


def test_what_is_undecided_says_what_it_takes():
    found = interval(around(0.8, 1))
    more = needed(found, [0]) - 6
    said = outlook(found, [0], 60 * 3, "restart")
    assert said == f"some {3 * more} minutes more ({more} restarts) if the estimate stays"
    one = outlook(interval(around(0.99, 1)), [0], 50, "seed")
    assert one == "some 1 minute more (1 seed) if the estimate stays"
    hours = math.ceil(more * 3000 / 3600)
    said = outlook(found, [0], 3000, "seed")
    assert said == f"some {hours} hours more ({more} seeds) if the estimate stays"
    assert needed(interval(around(0.0, 1)), [0]) is None
    assert outlook(interval(around(0.0, 1)), [0], 1, "seed") == TOO_CLOSE


# ---------------------------------------------------------------- calibration


def restart(number, shift, ratios, other="eager"):
    """Return metrics of a one-minute restart; its last slices were disturbed and are far off."""
    sides = [
        constructed.make_cell(name, "net", name, constructed.CPU1) for name in ("eager", other)
    ]
    run = constructed.make_pair_metrics(constructed.make_pair(f"pair-{number}", sides, number))
    load = {"samples": 64, "others": 0.0, "steal": 0.0, "waited": None}
    run["slices"] = [
        {"pair": pair, "side": side, "seconds": seconds, "disturbed": pair == len(ratios), **load}
        for pair, ratio in enumerate([*ratios, 9.0])
        for side, seconds in enumerate((1.0, math.exp(shift + ratio)))
    ]
    return run


@pytest.fixture
def program(tmp_path, monkeypatch, capsys):
    """Return a function that calibrates by given restarts and returns what is printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(places, "ROOT", tmp_path)

    def call(runs, *words):
        for number, run in enumerate(runs):
            constructed.write_json(tmp_path / f"results/cells/{number}/metrics.json", run)
        main(["calibrate", *words])
        return capsys.readouterr().out

    return call


def test_calibration_by_measured_pairs(program):
    rng = np.random.default_rng(2)  # heavy-tailed noise
    runs = [restart(n, rng.normal(0, 0.02), rng.standard_t(3, 4) * 0.02) for n in range(12)]
    out = program([*runs, restart(99, 5.0, [5.0], "ddp")])
    assert "by 12 restarts" in out
    assert "60 s each" in out
    found = {
        (question, int(effect)): (float(false), float(hour), minutes, edge)
        for question, effect, false, hour, minutes, edge in re.findall(
            r"^(> 1|within 5 %) +(\d+)% +([\d.]+)%.* ([\d.]+)% +(\S.*?)(  edge)?$", out, re.M
        )
    }
    assert len(found) == 10
    assert [key for key, row in found.items() if row[3]] == [("> 1", 0), ("within 5 %", 5)]
    allowed = 5 + 3 * math.sqrt(5 * 95 / 2000)
    for false, undecided, _, edge in found.values():
        if edge:
            assert 0 < false <= allowed
            assert false == pytest.approx(100 - undecided, abs=0.11)  # there every verdict is wrong
    assert found["> 1", 20] == (0, 0, "4.0", "")  # all within an hour, most by four restarts
    assert found["within 5 %", 5][2] == "more than 60"


def test_what_is_calibrated_is_the_rule_of_the_verdicts():
    for run in np.random.default_rng(3).normal(0.01, 0.02, (5, 20)):
        made = (interval(run[:n]) for n in range(4, 21))
        for one, other in zip(looks(run), made, strict=True):
            assert astuple(one) == pytest.approx(astuple(other))
