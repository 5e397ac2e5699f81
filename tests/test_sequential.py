"""The rule of verdicts: how often it errs, and its words."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from parbench.verdicts.sequential import (
    beyond,
    hodges_lehmann,
    interval,
    is_firm,
    k,
    needed,
    of_claim,
    outlook,
    ratio_margin,
    within,
)
from parbench.verdicts.words import DIFFERENT, FAILS, HOLDS, SAME, TOO_CLOSE, UNDECIDED

SPREAD = np.array([-1.0, 1.0, -1.0, 1.0, -1.0, 1.0])


def around(mean, half):
    """Six values whose interval is ``mean`` plus and minus ``half``."""
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
    assert hodges_lehmann([[10, 1, 2], [4, 4, 4]]) == pytest.approx([3.75, 4])


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
    assert beyond(None, ">", 0) == within(None, (-1, 1)) == UNDECIDED


def test_a_threshold_is_decided_by_where_the_interval_lies():
    for mean, op, word in [
        (3, ">", HOLDS),
        (-3, ">", FAILS),
        (0.5, ">", UNDECIDED),
        (-3, "<", HOLDS),
        (3, "<", FAILS),
        (-0.5, "<", UNDECIDED),
    ]:
        assert beyond(interval(around(7 + mean, 1)), op, 7) == word, (mean, op)


def test_a_margin_is_decided_by_where_the_interval_lies():
    low, high = ratio_margin(0.05)
    assert (math.exp(low), math.exp(high)) == pytest.approx((1 / 1.05, 1.05))
    for ratio, half, word in [
        (1.0, 0.02, SAME),
        (1.03, 0.01, SAME),
        (1.03, 0.04, UNDECIDED),
        (1.0, 0.2, UNDECIDED),
        (1.2, 0.05, DIFFERENT),
        (0.8, 0.05, DIFFERENT),
    ]:
        assert within(interval(around(math.log(ratio), half)), (low, high)) == word, (ratio, half)


def test_a_resolution_bounds_the_spread_of_identical_values():
    identical = [0.9] * 4
    assert interval(identical).high == pytest.approx(0.9)
    made = interval(identical, resolution=1 / 100)
    assert made.high - made.mean == pytest.approx(k(4) / 100 / 2)


def comparisons(*several):
    """Whether each of ``several`` values is above 0, at an alpha."""

    def above(values, alpha):
        return beyond(interval(values, alpha), ">", 0)

    return [partial(above, values) for values in several]


def test_a_claim_of_several_comparisons():
    # The interval of `clear` leaves 0 out by far, that of `barely` only at 0.05.
    clear, barely, unknown = (around(mean, 1) for mean in (9.0, 1.05, 0.5))
    for several, word in [
        ((clear, barely), HOLDS),
        ((clear, unknown), UNDECIDED),
        ((clear, clear, -clear), FAILS),
        ((-barely,), FAILS),
        ((clear, clear, -barely), UNDECIDED),  # one of three, and not at 0.05 / 3
    ]:
        assert of_claim(comparisons(*several)) == word
    for margin, word in [((0, 20), HOLDS), ((20, 30), FAILS)]:
        assert of_claim([lambda alpha, m=margin: within(interval(clear, alpha), m)]) == word


def test_a_verdict_is_firm_that_passes_among_all_claims_of_a_report():
    clear, barely, unknown = (comparisons(around(mean, 1)) for mean in (9.0, 1.05, 0.5))
    assert is_firm(clear, 20)
    assert is_firm(barely, 1)
    assert not is_firm(barely, 20)
    assert not is_firm(unknown, 1)


@pytest.mark.parametrize("boundaries", [(0.0,), (-2.0, 2.0), (-0.2, 0.2)])
def test_as_many_values_as_are_needed_decide(boundaries):
    def decided(found):
        if len(boundaries) == 1:
            return beyond(found, ">", *boundaries) != UNDECIDED
        return within(found, boundaries) != UNDECIDED

    def standing(n):
        """``n`` values of mean 0.5 and standard deviation 1."""
        values = np.random.default_rng(n).standard_normal(n)
        return interval(0.5 + (values - values.mean()) / values.std(ddof=1))

    n = needed(standing(5), boundaries)
    assert n > 5
    assert decided(standing(n))
    assert not decided(standing(n - 1))


def test_what_is_undecided_says_what_it_takes():
    found = interval(around(0.8, 1))
    more = needed(found, [0]) - 6
    said = outlook(found, [0], 60 * 3)
    assert said == f"some {3 * more} minutes more ({more} restarts) if the estimate stays"
    one = outlook(interval(around(0.99, 1)), [0], 50, "seed")
    assert one == "some 1 minute more (1 seed) if the estimate stays"
    assert outlook(found, [0], 3000) == TOO_CLOSE
    assert needed(interval(around(0.0, 1)), [0]) is None
    assert outlook(interval(around(0.0, 1)), [0], 1) == TOO_CLOSE
