"""A few hundred random configurations; `make fuzz` tries ten thousand."""

from __future__ import annotations

import fuzz


def test_random_configurations_are_planned_or_refused_in_one_sentence():
    with fuzz.cases() as case:
        fuzz.trial(case, 300, derandomize=True)()
    assert case.found["planned"] > 20
    assert case.found["refused"] > 100
