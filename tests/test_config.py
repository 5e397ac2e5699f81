"""A user's files are read safely, and mistakes in them are named.

Most messages are in tests/expected/mistakes.yaml; this file tests what no golden file can hold.
"""

from __future__ import annotations

import dataclasses

import pytest

from parbench.by_schema import SCHEMAS
from parbench.cell import Training
from parbench.errors import ParbenchError
from parbench.plan import config_files, schemas
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
    words = ["override={quickstart: {seeds: [0], settings: {augment: true, learning_rate: 5e-4}}}"]
    words += ["stack=", "override={'quickstart': {'seeds': [1]}}", 'account="0123"']
    quickstart = {"seeds": [1], "settings": {"augment": True, "learning_rate": 0.0005}}
    read = {"override": {"quickstart": quickstart}, "stack": None, "account": "0123"}
    assert config_files.parse_changes(words) == read


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("slurm={account: 0123}", "--config slurm, line 1: account: YAML reads 0123 as 83; write"),
        ("timeout_seconds=1_000", "--config timeout_seconds, line 1: YAML reads 1_000 as 1000"),
        ("slurm={account: 1", "--config slurm, line 1: not valid YAML: did not find expected"),
        ("slurm", "--config: 'slurm' is not key=value; correct it"),
    ],
)
def test_a_wrong_value_of_the_command_line_is_named(word, says):
    with pytest.raises(ParbenchError) as caught:
        config_files.parse_changes([word])
    assert str(caught.value).startswith(says)
