"""Files that a user writes are read safely, and what is wrong in them is named.

Messages stand in tests/contract/mistakes.yaml; here is what no golden file can hold.
"""

from __future__ import annotations

import dataclasses

import pytest

from parbench.by_schema import SCHEMAS
from parbench.cell import Training
from parbench.errors import ParbenchError
from parbench.plan import config, schemas
from parbench.plan.model import validated
from parbench.plan.published import Claims
from parbench.plan.settings import Settings

# --- the models and what is made of them ---


@pytest.mark.parametrize("name", schemas.MADE)
def test_schemas_are_those_of_the_models(name):
    """Else: PYTHONPATH=scripts python -m parbench.plan.schemas."""
    assert (SCHEMAS / f"{name}.schema.yaml").read_text() == schemas.text(name)


def test_the_settings_are_those_that_training_reads():
    samples = ["train_samples", "test_samples"]
    training = [field.name for field in dataclasses.fields(Training)]
    assert list(Settings.model_fields) == [*training, *samples]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metrik": "x"}, "c.test: unknown key 'metrik' (value x); did you mean 'metric'?"),
        ({"op": "equals"}, "c.test.op: equals is not one of >, <"),
        ({"value": None}, "c.test: the key 'value' (of > and <:"),
        ({"op": "report"}, "c.test.value: value 1 does not belong here; remove it"),
        ({"op": "equal"}, "c.test: the key 'against' (of `equal`"),
        ({"numerator": {}}, "c.test.numerator: value {} should name something"),
        ({"value": "published"}, "c: the key 'published' (the ratio"),
    ],
)
def test_a_claim_whose_test_contradicts_itself(change, words):
    test = {"metric": "m", "op": ">", "value": 1}
    test |= {"numerator": {"devices": 1}, "denominator": {"devices": 2}}
    with pytest.raises(ParbenchError) as caught:
        validated(Claims, {"c": {"study": "s", "claim": "x", "test": test | change}}, "here")
    assert str(caught.value).startswith(f"here: {words}")


# --- config.yaml and what is laid over it ---


def test_values_of_the_command_line_are_those_of_a_file():
    """Snakemake leaves what stands in a mapping or list as text."""
    override = {"quickstart": {"seeds": ["0"], "settings": {"augment": "true"}}}
    asked = config.typed({"override": override, "x": "1 a"})
    assert asked["override"]["quickstart"] == {"seeds": [0], "settings": {"augment": True}}
    assert asked["x"] == "1 a"
