"""Sweeps: the variants, pairs and rows that a study's templates stand for, and what is refused."""

from __future__ import annotations

import pytest

from parbench.errors import ParbenchError
from parbench.plan.sweep import expanded

GRID = {
    "name": "ddp-$devices-$batch",
    "variant": {
        "strategy": "ddp",
        "hardware": "cpu$devices",
        "settings": {"global_batch": "$batch"},
        "baseline": "eager",
        "published": {"batch_size": ["$batch", 7]},
    },
}
EAGER = {"strategy": "eager", "hardware": "cpu1"}
STUDY = {
    "variants": {"eager": EAGER},
    "tables": [{"title": "All", "variants": ["eager", "ddp-*", "none-*"]}],
}


def swept(**changes) -> dict:
    return expanded(STUDY | {"sweep": [GRID | changes]}, "a.yaml")


def test_every_combination_of_a_matrix_is_a_variant_and_a_row():
    study = swept(matrix={"devices": [2, 4], "batch": [16, 64]})
    names = ["eager", "ddp-2-16", "ddp-2-64", "ddp-4-16", "ddp-4-64"]
    assert list(study["variants"]) == names
    assert study["variants"]["ddp-4-16"] == {
        "strategy": "ddp",
        "hardware": "cpu4",
        "settings": {"global_batch": 16},
        "baseline": "eager",
        "published": {"batch_size": [16, 7]},
    }
    assert study["tables"][0]["variants"] == [*names, "none-*"]  # no variant: told by the check
    assert "pairs" not in study


def test_values_that_belong_together_are_zipped_and_compared_with_their_baseline():
    pairs = {"restarts": 2, "compare": [{"variant": "eager", "baseline": "eager"}]}
    sweep = GRID | {"zip": {"devices": [2, 4], "batch": [16, 64]}, "compared": True}
    study = expanded(STUDY | {"sweep": [sweep], "pairs": pairs}, "a.yaml")
    assert study["pairs"] == {
        "restarts": 2,
        "compare": [
            {"variant": "eager", "baseline": "eager"},
            {"variant": "ddp-2-16", "baseline": "eager"},
            {"variant": "ddp-4-64", "baseline": "eager"},
        ],
    }


@pytest.mark.parametrize("pairs", [["a"], "a", {"compare": None}])
def test_invalid_pairs_are_left_to_the_check_of_the_study(pairs):
    sweep = GRID | {"zip": {"devices": [2, 4], "batch": [16, 64]}, "compared": True}
    assert expanded(STUDY | {"sweep": [sweep], "pairs": pairs}, "a.yaml")["pairs"] == pairs


def test_values_that_no_name_can_hold_make_valid_names_that_can_be_referred_to():
    variant = {"strategy": "gpipe", "hardware": "cpu2", "baseline": "eager-$rate"}
    variant |= {"options": {"balance": "$balance"}, "settings": {"learning_rate": "$rate"}}
    rates = [0.1, 1.0e-05]
    sweeps = [
        {"name": "eager-$rate", "variant": EAGER, "matrix": {"rate": rates}},
        {"name": "half-$type", "variant": EAGER, "matrix": {"type": ["FP16"]}},
        {
            "name": "gpipe-$rate-$balance",
            "variant": variant,
            "matrix": {"rate": rates, "balance": [[1, 1]]},
        },
    ]
    variants = expanded(STUDY | {"sweep": sweeps}, "a.yaml")["variants"]
    assert list(variants)[1:] == [
        *("eager-0_1", "eager-1e-05", "half-fp16", "gpipe-0_1-1-1", "gpipe-1e-05-1-1"),
    ]
    assert variants["gpipe-0_1-1-1"]["baseline"] == "eager-0_1"
    assert variants["gpipe-0_1-1-1"]["options"] == {"balance": [1, 1]}
    assert variants["gpipe-0_1-1-1"]["settings"] == {"learning_rate": 0.1}


ONE = {"name": "ddp-$devices", "matrix": {"devices": [2]}}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "a.yaml: sweep.0: needs either `matrix` or `zip`"),
        (
            {"zip": {"devices": [2], "batch": [1, 2]}},
            "equally many values for each key, and has devices",
        ),
        ({"matrix": {"devices": []}}, "a.yaml: sweep.0: matrix.devices: value [] "),
        (
            {"matrix": {"devices": [2, 4]}},
            "sweep.0.name: 'ddp-$devices-$batch' contains none of the",
        ),
        ({"name": "x", "matrix": {"devices": [2], "batch": [1, 2]}}, "duplicate variant 'x'; name"),
        (
            {"variant": EAGER, "matrix": {"devices": [2], "batch": [0.1, "0_1"]}},
            "duplicate variant 'ddp-2-0_1'; name every key that varies in it, with values that",
        ),
        (
            ONE | {"name": "DDP-$devices"},
            "sweep.0.name: 'DDP-2' is not a valid variant name; use lo",
        ),
        (
            ONE | {"compared": True, "variant": {"strategy": "ddp", "hardware": "cpu2"}},
            "a.yaml: sweep.0.variant: `compared: true` has each variant take turns with its baseli",
        ),
        (
            ONE | {"variant": {"strategy": "ddp", "hardware": "cpu2", "baseline": "eagre"}},
            "sweep.0.variant.baseline: unknown variant 'eagre', for ddp-2; did you mean 'eager'?",
        ),
        (
            ONE | {"variant": {"strategy": "ddp", "hardwre": "cpu2"}},
            "a.yaml: sweep.0.variant: unknown key 'hardwre' (value 'cpu2'); did you mean",
        ),
        ({"matrices": {}}, "a.yaml: sweep.0: unknown key 'matrices' (value {}); did you mean"),
    ],
)
def test_a_sweep_that_makes_no_variants_is_refused(changes, sentence):
    with pytest.raises(ParbenchError) as error:
        swept(**changes)
    assert sentence in str(error.value)
