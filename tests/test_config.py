"""Every mistake in a configuration ends with its file, key, value and fix."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import yaml

import config
from errors import ParbenchError


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
        (lambda s: s.update(seeds=[0, 0]), "seeds"),
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
