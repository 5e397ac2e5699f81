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
from parbench.plan import config, places, schemas
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
    claims = places.ROOT / "studies/published/claims.yaml"
    assert config.claims(claims) == read_yaml(claims)


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
        ({"value": None}, "c.test.value: value null should be a number above 0"),
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


def laughs(first: str, each: str) -> str:
    """Ten lines, each of ten aliases of the one before: more values than there is memory."""
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{i}: &a{i} {each.format(*[f'*a{i - 1}'] * 10)}" for i in range(1, 11)]
    return "\n".join(lines)


LIST = f"[{', '.join(['{}'] * 10)}]"
MAPPING = "{{" + ", ".join(f"k{i}: {{}}" for i in range(10)) + "}}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (laughs("[x]", LIST), "more than 20,000 values in all, each alias counted"),
        (laughs("{x: y}", MAPPING), "more than 20,000 values in all"),
        ("a: &a [*a]", "more than 30 levels"),
        ("a: &a {b: *a}", "more than 30 levels"),
        ("a: &a {x: 1}\nb: {<<: [*a, *a]}", "not valid YAML"),
        ("a: " + "[" * 100_000, "more than 30 levels"),
        (f"a: {[0] * 1001}", "a: 1,001 entries; at most 1,000"),
        ("a: !!set {x, y}", "a: {"),
        ("a: !!binary aGk=", "of YAML's type bytes"),
        ("a: !mine 3", "not valid YAML"),
        ("? !!set {x}\n: y", "not valid YAML"),
        ("a: 2024-13-01", "put it in quotes"),
        ("a: 0b_", "put it in quotes"),
        ("a: " + "9" * 5000, "put it in quotes"),
        ("a: 9007199254740993", "a: a whole number beyond 9,007,199,254,740,992"),
        ("a: {b: [.nan]}", "a.b.0: nan is no number to reckon with"),
        ("3: x", "the key '3' is a number; write it as one line of text"),
        ("a: {null: x}", "a: the key 'None' is null"),
        ("a: {2024-01-31: x}", "a: the key '2024-01-31' is of YAML's type date"),
        ('a: {"b\\nc": x}', "a: the key 'b c' is more than one line"),
        ('title: "\\x1b[2Jx"', "title: x holds the character '\\x1b', which cannot be shown"),
        ('title: "a\\u202eb"', "holds the character '\\u202e'"),
        ('title: "\\ud800"', "not valid YAML"),
        ("a: " + "x" * (1 << 20), "more than 1,048,576 bytes"),
        (None, "cannot be read (Is a directory); name a file"),
        (b"\xff\xfea: 1", "not UTF-8 (byte 0); save it as plain UTF-8 text"),
        (b"a: \0", "not valid YAML"),
        (b"", "holds null, not keys with values"),
    ],
)
def test_what_is_no_plain_value_of_a_sane_size_is_refused_at_once(tmp_path, text, words):
    path = tmp_path / "mine.yaml"
    if text is None:
        path.mkdir()
    else:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ParbenchError) as caught:
        read_yaml(path)
    message = str(caught.value)
    assert message.startswith(f"{path}")
    assert words in message
    assert message.isprintable()
    assert len(message) < 600


def test_anchors_and_other_scripts_are_as_good_as_ever(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        'a: &a [1, 2]\nb: *a\nc: "12\\u00a0GB, می\\u200cخواهم, 模型 ±"\nd: |\n  x\n  y\n'
    )
    value = read_yaml(path)
    assert value["b"] == [1, 2]
    assert value["d"] == "x\ny\n"


# --- config.yaml and what is laid over it ---


@pytest.mark.parametrize(
    "keys",
    ["studies 0", "stack", "hardware {}", "datasets {}", "override {}", "images given {}"],
)
@pytest.mark.parametrize("name", ["../config", "/etc/passwd", "a/b", "x" * 300])
def test_names_that_are_paths_are_refused(good, keys, name):
    *way, last = (int(key) if key.isdigit() else key for key in keys.split())
    part = good
    for key in way:
        part = part[key]
    part[name if last == "{}" else last] = {"device": "cpu", "devices": 1} if last == "{}" else name
    refused(good, keys.split()[0])


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
    endless: list = []
    endless.append(endless)
    for value in (float("nan"), endless, {"a": "\x1b"}):
        with pytest.raises(ParbenchError, match=r"^--config: timeout_seconds"):
            config.typed({"timeout_seconds": value})


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
