"""Every mistake in a configuration ends with its file, key, value and fix."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import yaml

import config
from errors import ParbenchError
from workspace import Workspace


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


def test_own_configuration_and_studies_are_right(good):
    config.checked(good)
    for path in (config.ROOT / "studies").glob("*.yaml"):
        config.study(path.stem)


def test_typo_names_file_key_value_and_nearest_key(good):
    good["timeout_second"] = 5
    refused(good, "unknown key 'timeout_second'", "value 5", "did you mean 'timeout_seconds'?")


def test_typo_in_an_overlaid_file_names_that_file(good, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("hardware: {cpu4: {device: cpu, device_count: 4, devices: 4}}\n")
    value = config.merged(good, config.read_yaml(mine))
    refused(value, str(mine), "hardware.cpu4", "'device_count'", files=["config.yaml", mine])


def test_wrong_value_names_the_nearest(good):
    good["deployment"] = "hots"
    refused(good, "config.yaml", "deployment", "hots", "did you mean 'host'?")


def test_missing_key_says_what_it_means(good):
    del good["stack"]
    refused(good, "'stack'", "software versions", "missing")


def test_dataset_specification_is_checked(good):
    good["datasets"]["mine"] = {"kind": "image-folder", "pth": "/data"}
    refused(good, "datasets.mine")


def test_a_given_image_must_stand_for_a_recipe(good):
    good["images"]["given"] = {"torhc": "/images/torch.sif"}
    refused(good, "config.yaml: images.given.torhc", "no torhc.def", "did you mean 'torch'?")


DIGEST = f"debian@sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("arguments", "given", "words"),
    [
        ({"bootstrap": "docker"}, {}, ("images.arguments.bootstrap", "needs `from`")),
        ({"from": DIGEST}, {}, ("images.arguments.from", "bootstrap: docker")),
        ({"gpu": "nccl"}, {}, ("images.arguments.gpu", "CUDA development image")),
        ({"gpu": "nccl"}, {"report": "/r.sif"}, ("images.arguments.gpu", "docs/images.md")),
        ({"bootstrap": "docker", "from": DIGEST, "gpu": "nccl"}, {}, None),
        ({"gpu": "nccl"}, {"base": "/cuda.sif"}, None),
        ({"bootstrap": "debootstrap", "mirror": "http://deb.debian.org/debian"}, {}, None),
    ],
)
def test_build_arguments_that_do_not_fit_are_refused_before_anything_is_built(
    good, arguments, given, words
):
    good["images"] |= {"arguments": arguments, "given": given}
    if words:
        refused(good, "config.yaml: ", *words)
    else:
        config.checked(good)


def test_override_is_checked_like_a_study(good):
    good["override"] = {"quickstart": {"settings": {"epoch": 3}}}
    refused(good, "override.quickstart.settings", "'epoch'", "did you mean 'epochs'?")


def test_broken_yaml_names_file_and_line(tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text("studies: [quickstart\nstack: current\n")
    with pytest.raises(ParbenchError, match=r"broken.yaml, line \d+: not valid YAML"):
        config.read_yaml(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read (Is a directory); name a file"),
        (b"\xff\xfea: 1", "not UTF-8 (byte 0); save it as plain UTF-8 text"),
        (b"a: \0", "not valid YAML"),
        (b"", "holds null, not keys with values"),
    ],
)
def test_what_cannot_be_read_names_the_file(tmp_path, content, words):
    path = tmp_path / "mine.yaml"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ParbenchError) as caught:
        config.read_yaml(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_may_not_be_read_names_it(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(config.Path, "open", refuse)  # root may read everything
    with pytest.raises(ParbenchError, match=r"mine.yaml: cannot be read \(Permission denied\)"):
        config.read_yaml(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["-n", "--config", "studies=[six]", "--forceall"], ""),
        (["--configfile", "good.yaml", "--quiet", "all"], ""),
        (["-n", "--configfile", "good.yaml", "god.yaml"], "god.yaml: no such file; did you mean"),
        (["--configfile", "a.yaml", "b.yaml", "--configfile=c.yaml"], "--configfile stands twice"),
        (["--configfiles=bad.yaml", "-n"], "bad.yaml, line 2: not valid YAML"),
        (["--configfile", "."], ".: cannot be read (Is a directory)"),
    ],
)
def test_files_are_checked_before_snakemake_opens_them(tmp_path, words, error):
    (tmp_path / "good.yaml").write_text("studies: [quickstart]\n")
    (tmp_path / "bad.yaml").write_text("studies: [quickstart\n")
    command = [sys.executable, config.ROOT / "scripts" / "config.py", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == (2 if error else 0)
    assert done.stderr.startswith(f"error: {error}" if error else "")
    assert done.stderr.count("\n") == bool(error)


def test_make_checks_them_first():
    command = ["make", "--dry-run", "report", "ARGS=--configfile mine.yaml"]
    done = subprocess.run(command, cwd=config.ROOT, capture_output=True, text=True, check=True)
    check, run = (done.stdout.index(program) for program in ("scripts/config.py", "snakemake"))
    assert check < run
    assert done.stdout[check:].startswith("scripts/config.py --configfile mine.yaml\n")


def test_key_twice_is_refused(tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text("a: 1\nb: 2\na: 3\n")
    with pytest.raises(ParbenchError, match=r"'a' stands twice \(line 1 and line 3\)"):
        config.read_yaml(path)


def test_tags_are_refused(tmp_path):
    path = tmp_path / "tag.yaml"
    path.write_text("a: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(ParbenchError, match="not valid YAML"):
        config.read_yaml(path)


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
        ("a: " + "[" * 500 + "]" * 500, "more than 30 levels"),
        ("a: " + "[" * 100_000, "more than 30 levels"),
        (f"a: {[0] * 1001}", "a: 1,001 entries; at most 1,000"),
        ("a: !!set {x, y}", "a: {"),
        ("a: !!binary aGk=", "of YAML's type bytes"),
        ("a: !mine 3", "not valid YAML"),
        ("? !!set {x}\n: y", "not valid YAML"),
        ("a: 2024-01-31", "a: 2024-01-31 is of YAML's type date; put it in quotes"),
        ("a: 2024-13-01", "put it in quotes"),
        ("a: 0b_", "put it in quotes"),
        ("a: " + "9" * 5000, "put it in quotes"),
        ("a: 9007199254740993", "a: a whole number beyond 9,007,199,254,740,992"),
        ("a: {b: [.nan]}", "a.b.0: nan is no number to reckon with"),
        ("a: -.inf", "a: -inf is no number"),
        ("3: x", "the key '3' is a number; write it as one line of text"),
        ("a: {null: x}", "a: the key 'None' is null"),
        ("a: {yes: x}", "a: the key 'True' is true or false"),
        ("a: {2024-01-31: x}", "a: the key '2024-01-31' is of YAML's type date"),
        ('a: {"b\\nc": x}', "a: the key 'b c' is more than one line"),
        ('title: "\\x1b[2Jx"', "title: x holds the character '\\x1b', which cannot be shown"),
        ('title: "a\\u202eb"', "holds the character '\\u202e'"),
        ('title: "\\ud800"', "not valid YAML"),
        ('"\\0": x', "holds the character '\\x00'"),
        ("a: " + "x" * (1 << 20), "more than 1,048,576 bytes"),
    ],
)
def test_what_is_no_plain_value_of_a_sane_size_is_refused_at_once(tmp_path, text, words):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ParbenchError) as caught:
        config.read_yaml(path)
    message = str(caught.value)
    assert message.startswith(f"{path}")
    assert words in message
    assert message.isprintable()
    assert len(message) < 600


def test_a_device_without_an_end_is_not_read_to_it():
    with pytest.raises(ParbenchError, match="/dev/zero: more than"):
        config.read_yaml("/dev/zero")


def test_anchors_and_other_scripts_are_as_good_as_ever(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        'a: &a [1, 2]\nb: *a\nc: "12\\u00a0GB, می\\u200cخواهم, 模型 ±"\nd: |\n  x\n  y\n'
    )
    value = config.read_yaml(path)
    assert value["b"] == [1, 2]
    assert value["d"] == "x\ny\n"


@pytest.mark.parametrize(
    "keys",
    [
        ("studies", 0),
        ("stack",),
        ("hardware", "{}"),
        ("datasets", "{}"),
        ("override", "{}"),
        ("images", "given", "{}"),
    ],
)
@pytest.mark.parametrize("name", ["../config", "/etc/passwd", "a/b", "..", "~root", "x" * 300])
def test_names_that_are_paths_are_refused(good, keys, name):
    *way, last = keys
    part = good
    for key in way:
        part = part[key]
    part[name if last == "{}" else last] = {"device": "cpu", "devices": 1} if last == "{}" else name
    refused(good, str(keys[0]))


def test_a_whole_number_is_written_as_one(good):
    good["hardware"]["cpu1"]["devices"] = 1.0
    refused(good, "hardware.cpu1.devices", "1.0 is not of type 'integer'")


def test_values_of_the_command_line_are_those_of_a_file(good):
    """Snakemake leaves what stands in a mapping or list as text."""
    asked = config.typed(
        {"override": {"quickstart": {"seeds": ["0"], "settings": {"augment": "true"}}}, "x": "1 a"}
    )
    assert asked["override"]["quickstart"] == {"seeds": [0], "settings": {"augment": True}}
    assert asked["x"] == "1 a"
    config.checked(config.merged(good, {"override": asked["override"]}))


def test_a_wrong_value_of_the_command_line_is_not_blamed_on_a_file(good):
    changes = config.typed({"nodes": {"connect_seconds": "soon"}})
    with pytest.raises(ParbenchError, match=r"^--config: nodes.connect_seconds: value soon"):
        config.checked(config.merged(good, changes), None, changes)
    endless: list = []
    endless.append(endless)
    for value in (float("nan"), endless, {"a": "\x1b"}):
        with pytest.raises(ParbenchError, match=r"^--config: timeout_seconds"):
            config.typed({"timeout_seconds": value})


def test_snakemake_takes_them_so(tmp_path):
    work = Workspace(tmp_path / "work")
    override = "override={quickstart: {seeds: [0], settings: {epochs: 1}}}"
    assert work.jobs("--config", override)["train"] == 10


def test_missing_file_names_the_nearest(tmp_path):
    (tmp_path / "mine.yaml").write_text("{}")
    with pytest.raises(ParbenchError, match="did you mean mine.yaml"):
        config.read_yaml(tmp_path / "mime.yaml")


@pytest.mark.parametrize(
    ("files", "changes", "words"),
    [
        ([], {}, ["--config", "studies=[six]"]),
        ([], {"studies": ["six", "seven"], "timeout_seconds": 5}, ["--config", "studies=[six]"]),
        ([config.ROOT / "config.yaml"], None, ["--config", "studies=[six]"]),
        (
            [config.ROOT / "config.yaml", config.ROOT / "rules" / ".." / "mine.yaml", "/a/b.yaml"],
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


def test_unknown_study_names_the_nearest():
    with pytest.raises(ParbenchError, match="did you mean 'quickstart'"):
        config.study("quikstart")


@pytest.fixture
def study_file(tmp_path, monkeypatch):
    """Writes a changed quickstart to a folder of its own."""
    monkeypatch.setattr(config, "ROOT", tmp_path)
    (tmp_path / "studies").mkdir()
    source = yaml.safe_load((config.SCHEMAS.parent.parent / "studies/quickstart.yaml").read_text())

    def write(change) -> None:
        value = copy.deepcopy(source)
        change(value)
        (tmp_path / "studies" / "mine.yaml").write_text(yaml.safe_dump(value))

    return write


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s["variants"]["ddp"].update(hardwar="cpu2"), "variants.ddp: unknown key"),
        (lambda s: s["settings"].update(optimizer="adam"), "settings.optimizer: adam is not one"),
        (lambda s: s.update(seeds=[0, 0]), "seeds: .*has non-unique elements"),
        (lambda s: s.update(seeds=[1, 1.0]), "seeds"),
        (lambda s: s.update(seeds=[0, False]), "seeds.1"),
        (lambda s: s.update(seeds=[2**32]), "seeds.0: value 4294967296"),
        (lambda s: s.update(scaled_from="../config"), "scaled_from: value ../config"),
        (lambda s: s["variants"].update({"../x": {}}), "variants.*../x"),
        (lambda s: s["settings"].update(epochs=3.0), "settings.epochs: value 3.0"),
        (lambda s: s.pop("title"), "'title'"),
        (lambda s: s.update(assumed={"epochs": 3}), "stands under settings and under assumed"),
        (lambda s: s["settings"].update(epochs="many"), "settings.epochs"),
    ],
)
def test_wrong_study(study_file, change, words):
    study_file(change)
    with pytest.raises(ParbenchError, match=words) as caught:
        config.study("mine")
    assert "studies/mine.yaml" in str(caught.value)


def test_every_key_of_every_schema_is_described():
    def visit(node, path):
        if isinstance(node, dict):
            for key, part in node.get("properties", {}).items():
                assert "description" in part or "$ref" in part, f"{path}.{key}"
                visit(part, f"{path}.{key}")
            for other in ("items", "additionalProperties"):
                visit(node.get(other), f"{path}.{other}")
            for part in node.get("oneOf", []):
                visit(part, path)

    for path in config.SCHEMAS.glob("*.schema.yaml"):
        visit(yaml.safe_load(path.read_text()), path.stem)
