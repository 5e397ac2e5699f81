"""Files that a user writes are read safely, and what is wrong in them is named.

Messages stand in tests/contract/mistakes.yaml; here is what no golden file can hold.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
import yaml

from parbench.cell import Training
from parbench.errors import ParbenchError
from parbench.plan import config, places, published, schemas
from parbench.plan.model import validated
from parbench.plan.published import Claims
from parbench.plan.settings import Settings
from parbench.plan.yaml_file import read_yaml


@pytest.fixture
def good():
    return config.load()


def refused(value, *words, files=None):
    with pytest.raises(ParbenchError) as caught:
        config.checked(value, files)
    message = str(caught.value)
    for word in words:
        assert word in message, message
    assert "\n" not in message.strip()


# --- the models and what is made of them ---


def test_own_configuration_studies_and_claims_are_right(good):
    config.checked(good)
    for path in (places.ROOT / "studies").glob("*.yaml"):
        config.study(path.stem)
    published.claims(places.ROOT / "studies/published/claims.yaml")


@pytest.mark.parametrize("name", schemas.MADE)
def test_schemas_are_those_of_the_models(name):
    """Else: python scripts/config.py --schemas."""
    assert (places.SCHEMAS / f"{name}.schema.yaml").read_text() == schemas.text(name)


def test_the_settings_are_those_that_training_reads():
    assert list(Settings.model_fields) == [field.name for field in dataclasses.fields(Training)]


def test_every_key_of_every_schema_is_described():
    def visit(node, path):
        if isinstance(node, dict):
            for key, part in node.get("properties", {}).items():
                assert "description" in part or "$ref" in part, f"{path}.{key}"
            for key, part in node.items():
                visit(part, f"{path}.{key}")
        elif isinstance(node, list):
            for part in node:
                visit(part, path)

    for path in places.SCHEMAS.glob("*.schema.yaml"):
        visit(yaml.safe_load(path.read_text()), path.stem)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metrik": "x"}, "c.test: unknown key 'metrik' (value x); did you mean 'metric'?"),
        ({"op": "equals"}, "c.test.op: equals is not one of >, <"),
        ({"value": None}, "c.test: the key 'value' (of > and <;"),
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


# --- YAML ---


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: !!binary aGk=", "of YAML's type bytes; put it in quotes"),
        ("a: 2024-13-01", "not valid YAML: month must be in 1..12"),
        ("a: {b: [.nan]}", "a.b.0: nan is no number to reckon with"),
        (None, "cannot be read (Is a directory); name a file"),
        (b"\xff\xfea: 1", "not valid YAML: 'utf-8' codec"),
    ],
)
def test_what_is_no_plain_value_is_refused(tmp_path, content, words):
    path = tmp_path / "mine.yaml"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ParbenchError) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)


# --- config.yaml and what is laid over it ---


def test_a_wrong_value_is_blamed_on_the_file_that_holds_it(good, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("hardware: {cpu4: {device: cpu, device_count: 4, devices: 4}}\n")
    value = config.merged(good, read_yaml(mine))
    refused(value, str(mine), "hardware.cpu4", "'device_count'", files=["config.yaml", mine])
    changes = config.typed({"nodes": {"connect_seconds": "soon"}})
    with pytest.raises(ParbenchError, match=r"^--config: nodes.connect_seconds: value soon"):
        config.checked(config.merged(good, changes), None, changes)


def test_values_of_the_command_line_are_those_of_a_file(good):
    """Snakemake leaves what stands in a mapping or list as text."""
    asked = config.typed(
        {"override": {"quickstart": {"seeds": ["0"], "settings": {"augment": "true"}}}, "x": "1 a"}
    )
    assert asked["override"]["quickstart"] == {"seeds": [0], "settings": {"augment": True}}
    assert asked["x"] == "1 a"
    config.checked(config.merged(good, {"override": asked["override"]}))


@pytest.mark.parametrize(
    ("files", "changes", "words"),
    [
        ([], {"studies": ["six", "seven"], "timeout_seconds": 5}, ["--config", "studies=[six]"]),
        (
            [places.ROOT / "config.yaml", places.ROOT / "rules" / ".." / "mine.yaml", "/a/b.yaml"],
            {"stack": "paper", "override": {"six": {"dataset": "cifar10"}}},
            [
                *("--configfile", "mine.yaml", "/a/b.yaml", "--config", "studies=[six]"),
                *('override={"six":{"dataset":"cifar10"}}', "stack=paper"),
            ],
        ),
    ],
)
def test_arguments_that_ask_for_a_study_again(files, changes, words):
    assert config.arguments("six", files, changes) == words


def test_files_are_checked_before_snakemake_opens_them(tmp_path):
    (tmp_path / "good.yaml").write_text("studies: [quickstart]\n")
    program = [sys.executable, places.ROOT / "scripts" / "config.py"]
    for words in (["-n", "--config", "x=[six]"], ["--configfile", "good.yaml", "--quiet", "all"]):
        subprocess.run([*program, *words], cwd=tmp_path, check=True)
    done = subprocess.run(
        ["make", "--dry-run", "report", "ARGS=--configfile mine.yaml"],
        cwd=places.ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    check, run = (done.index(program) for program in ("scripts/config.py", "snakemake"))
    assert check < run
    assert done[check:].startswith("scripts/config.py --configfile mine.yaml\n")
