"""A user's files are read safely, and mistakes in them are named.

Most messages are in tests/contract/mistakes.yaml; this file tests what no golden file can hold.
"""

from __future__ import annotations

import dataclasses

import pytest

from parbench.by_schema import SCHEMAS
from parbench.cell import Training
from parbench.plan import config, schemas
from parbench.plan.settings import Settings

# --- the models and what is made of them ---


@pytest.mark.parametrize("name", schemas.MADE)
def test_schemas_are_those_of_the_models(name):
    """If not, run PYTHONPATH=scripts python -m parbench.plan.schemas."""
    assert (SCHEMAS / f"{name}.schema.yaml").read_text() == schemas.text(name)


def test_the_settings_are_those_that_training_reads():
    samples = ["train_samples", "test_samples"]
    training = [field.name for field in dataclasses.fields(Training)]
    assert list(Settings.model_fields) == [*training, *samples]


# --- config.yaml and what is laid over it ---


def test_values_of_the_command_line_are_those_of_a_file():
    """Snakemake leaves values inside a mapping or list as text."""
    override = {"quickstart": {"seeds": ["0"], "settings": {"augment": "true"}}}
    asked = config.typed({"override": override, "x": "1 a"})
    assert asked["override"]["quickstart"] == {"seeds": [0], "settings": {"augment": True}}
    assert asked["x"] == "1 a"
