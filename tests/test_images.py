"""Images: what decides their names, what they contain, and what happens when a build fails.

Tests that need Apptainer build real images. A short recipe on top of the base image replaces the
large ones where only the machinery is tested.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from parbench import cache, files, machine
from parbench.deploy import apptainer, build, containers, recipes
from parbench.errors import ParbenchError
from parbench.exits import run_main
from parbench.files import read_json
from parbench.plan import config_files
from require import require
from workspace import Workspace, small_study

SETTINGS = recipes.ImageSettings(unpack=False)
TINY = """Bootstrap: localimage
From: {{ parent }}

%arguments
    parent=base
    key=none

%post
    echo parbench > /tiny

%test
    test "$(cat /tiny)" = parbench

%labels
    parbench.recipe.digest {{ key }}
"""


# ---------------------------------------------------------------- names


@pytest.fixture
def copied_recipes(tmp_path, monkeypatch):
    """Return a copy of the recipes, to be edited."""
    shutil.copytree(config_files.ROOT / "containers", tmp_path / "containers")
    monkeypatch.setattr(recipes, "RECIPES", tmp_path / "containers")
    return tmp_path / "containers"


MORE = {"text", "spark", "deepspeed"}  # built on horovod
ALL = {"base", "torch", "horovod", "report", *MORE}


def keys(**arguments):
    recipes._image.cache_clear()
    settings = replace(SETTINGS, arguments=arguments)
    return {name: recipes.image(name, "current", settings).key for name in recipes.names("current")}


@pytest.mark.parametrize(
    ("file", "text", "renamed"),
    [
        ("torch.def", "\n%runscript\n    exec true\n", {"torch", "horovod", *MORE}),
        ("base.def", "\n%runscript\n    exec true\n", ALL),
        ("torch.def", "\n    # a comment\n\n", set()),
        ("locks/current/report.txt", "# renewed\n", {"report"}),
        ("build_horovod.py", "\nWHATEVER = 1\n", {"horovod", *MORE}),
        ("build_horovod.py", "\n# a comment\n", set()),
        ("post.sh", "\ntrue\n", ALL),
    ],
)
def test_a_changed_input_renames_an_image_and_those_built_on_it(
    copied_recipes, file, text, renamed
):
    before = keys()
    with open(copied_recipes / file, "a") as opened:
        opened.write(text)
    after = keys()
    assert {name for name in before if before[name] != after[name]} == renamed
    recipes._image.cache_clear()


def test_arguments_count_and_a_mirror_does_not():
    before = keys()
    assert keys(mirror="http://mirror.example/debian") == before
    assert keys(gpu="nccl")["horovod"] != before["horovod"]
    assert keys(gpu="nccl")["torch"] == before["torch"]
    assert (
        recipes.image("base", "paper", SETTINGS).label == recipes.image("base", "x", SETTINGS).label
    )


# ---------------------------------------------------------------- builds


def ready(name: str, stack: str = "current") -> dict:
    """Build a real image into the cache unless it is there; return its facts."""
    require("apptainer")
    if problem := apptainer.probe().problem:
        pytest.skip(problem)
    return containers.ensure(recipes.image(name, stack, SETTINGS), SETTINGS)


class Build:
    """A copy of the project with a recipe `tiny` and its own cache."""

    def __init__(self, folder: Path, base: dict):
        self.work = Workspace(folder / "a work folder", "apptainer")
        self.cache = folder / "a cache"
        self.folder = self.cache / "images"
        self.folder.mkdir(parents=True)
        for path in (cache.folder() / "images").glob(f"{base['label']}.*"):
            if path.suffix in (".sif", ".json"):
                shutil.copy2(path, self.folder)
        self.recipe = self.work.folder / "containers" / "tiny.def"
        self.recipe.write_text(TINY)

    def run(self, *words, check=True):
        return self.work.parbench("images", *words, check=check, PARBENCH_CACHE=str(self.cache))


@pytest.fixture
def tiny(tmp_path):
    return Build(tmp_path, ready("base"))


def test_an_image_is_built_once_with_a_bill_of_materials(tiny):
    assert "building" in tiny.run("build", "tiny").stderr
    (file,) = tiny.folder.glob("tiny-*.sif")
    second = tiny.run("build", "tiny")
    assert second.stderr == ""
    assert second.stdout.strip() == str(file.with_suffix(".unpacked"))
    assert not list(tiny.folder.glob("base-*.unpacked"))  # nothing runs in it
    lines = {line.split("-")[0]: line for line in tiny.run("list").stdout.splitlines()}
    assert "sha256" in lines["tiny"]
    assert "missing" in lines["torch"]
    facts = json.loads(file.with_suffix(".json").read_text())
    bill = json.loads(file.with_suffix("").with_suffix(".cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    purls = {part["purl"].split("@")[0] for part in bill["components"]}
    assert {"pkg:pypi/pip", "pkg:deb/debian/python3.11"} <= purls
    assert {f"pkg:pypi/{name}" for name in facts["packages"]} <= purls


def test_a_broken_recipe_leaves_nothing_half_and_says_why(tiny):
    for old, new, words in (
        ("echo parbench > /tiny", "apt-get instal nothing", "Invalid operation instal"),
        ("= parbench", "= something", "cannot be built"),  # its %test fails
    ):
        tiny.recipe.write_text(TINY.replace(old, new))
        done = tiny.run("build", "tiny", check=False)
        assert done.returncode == 2
        last = done.stderr[done.stderr.index("error: the image tiny-") :]
        for word in (words, "recipe:", "tiny.def", "log:", "deployment: host"):
            assert word in last
        # Locks and logs stay beside the base image.
        assert {path.suffix for path in tiny.folder.glob("tiny-*")} == {".lock", ".log"}
    unknown = tiny.run("build", "tin", check=False)
    assert "there is no image 'tin': containers/ has no tin.def" in unknown.stderr


STUB = """#!/bin/sh
# An Apptainer that builds a folder of two files, and shows what a build is given.
case "$*" in
*--version*) echo "apptainer version 1.4.5" ;;
*--sandbox*)
    while [ "$1" != --sandbox ]; do shift; done
    mkdir -p "$2/bin"
    cp "$3" "$2/content"
    ln -s content "$2/bin/link"
    ;;
*build*)
    stat -c "work folder: %a" .
    cat build/machine.sh
    for word in "$@"; do
        case "$word" in *.sif) echo built >"$word" ;; esac
    done
    ;;
*-c*) echo '{"python": "3.11.2", "packages": {"pip": "23.0.1"}, "debian": [["a", "1", "amd64"]]}' ;;
esac
"""


@pytest.fixture
def stubbed(tmp_path, monkeypatch, copied_recipes) -> recipes.Image:
    """Return an image that stub programs build and unpack into a cache of its own."""
    for name in ("apptainer", "debootstrap"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(STUB)
        (tmp_path / "bin" / name).chmod(0o755)
    (copied_recipes / "tiny.def").write_text(TINY)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PARBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(apptainer, "cannot_build", lambda **_: None)
    monkeypatch.setattr(build, "machine_mirror", lambda: None)
    for cached in (apptainer.probe, recipes._image):
        cached.cache_clear()
    yield recipes.image("tiny", "current", UNPACKED)
    for cached in (apptainer.probe, recipes._image):
        cached.cache_clear()


UNPACKED = recipes.ImageSettings(unpack=True)


def test_an_unpacked_image_is_compared_with_the_image_file_once(stubbed, monkeypatch, capsys):
    def unpacks() -> bool:
        containers.ensure(stubbed, UNPACKED)
        assert (stubbed.unpacked / "content").read_bytes() == stubbed.path.read_bytes()
        return "unpacking it" in capsys.readouterr().err

    assert unpacks()
    with monkeypatch.context() as context:
        context.setattr(build, "sha256_file", None)  # nothing is read again
        assert not unpacks()
    containers.recheck(stubbed)
    assert not unpacks()
    # A clean-up of the disk deletes a file.
    (stubbed.unpacked / "bin" / "link").unlink()
    containers.recheck(stubbed)
    assert "files were changed or deleted" in capsys.readouterr().err
    assert unpacks()
    assert (stubbed.unpacked / "bin" / "link").is_symlink()
    # The image of another machine takes the place of this one's.
    stubbed.path.write_text("of another machine\n")
    facts = stubbed.facts | {"sha256": files.sha256_file(stubbed.path)}
    files.write_json(stubbed.beside(".json"), facts)
    assert unpacks()
    # Copied in part, and not unpacked yet.
    stubbed.path.write_text("of another")
    stubbed.beside(".unpacked.json").unlink()
    with pytest.raises(ParbenchError, match=f"tiny-.*{facts['sha256']}.*copy both again, or"):
        containers.ensure(stubbed, UNPACKED)


def test_no_password_of_an_index_is_kept_or_shown(stubbed, monkeypatch, capfd, tmp_path):
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "https://alice:s3cr3t@index.example/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://s3cr3t@other.example/simple")
    containers.ensure(stubbed, UNPACKED)
    log = stubbed.beside(".log").read_text()
    assert "work folder: 700" in log  # others cannot read what the build needs
    assert "PIP_INDEX_URL=https://****@index.example/simple" in log
    written = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert len(written) > 8
    assert not [path for path in written if b"s3cr3t" in path.read_bytes()]
    monkeypatch.setattr(build, "machine_mirror", lambda: "http://a:s3cr3t@mirror.example/debian")
    stubbed.beside(".json").unlink()
    with pytest.raises(SystemExit):
        run_main(lambda: containers.ensure(stubbed, UNPACKED))
    output = "".join(capfd.readouterr())
    assert "s3cr3t" not in output
    assert "(http://****@mirror.example/debian), which the image would keep; set" in output


# ---------------------------------------------------------------- inside


def test_nothing_of_the_host_is_seen_inside(tmp_path):
    ready("report")
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "spy.py").write_text("")
    (planted / "sitecustomize.py").write_text("import builtins; builtins.spied = True")
    program = (
        "import builtins, importlib.util, json, os, sys\n"
        "print(json.dumps({'spy': importlib.util.find_spec('spy') is not None,"
        " 'spied': hasattr(builtins, 'spied'), 'prefix': sys.prefix,"
        " 'names': [name for name in ('SECRET', 'HOME_OF') if name in os.environ],"
        " 'path': os.environ['PYTHONPATH'],"
        f" 'tmp': os.listdir('/tmp'), 'planted': os.path.exists({str(planted)!r})}}))"
    )
    variables = {"PYTHONPATH": str(planted), "HOME": str(planted), "SECRET": "x"}
    variables |= {"PARBENCH_CACHE": str(cache.folder())}
    variables |= {"APPTAINER_BIND": str(planted), "APPTAINERENV_SECRET": "x"}
    root = config_files.ROOT
    command = [sys.executable, str(root / "scripts/bin/parbench"), "images", "run", "report", "--"]
    done = subprocess.run(
        [*command, "python", "-c", program],
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, **variables, "PYTHONPATH": str(planted)},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "spy": False, "spied": False, "prefix": "/opt/parbench", "names": [], "planted": False,
        "path": str(root / "scripts"),
        "tmp": list(root.parts[2:3]) if root.is_relative_to("/tmp") else [],
    }  # fmt: skip


# ---------------------------------------------------------------- cells in images


@pytest.fixture(scope="session")
def in_images():
    """Skip before the study is run for nothing, where it would run on the host."""
    ready("torch")


@pytest.fixture
def finished(in_images, quickstart):
    """Return the default study in images, as tests/conftest.py ran it without network."""
    return quickstart


def test_cells_run_in_images_without_network_and_say_in_which(finished):
    work, done = finished
    assert "cells run in Apptainer images, stack current" in done.stdout + done.stderr
    html = (work.folder / "reports/final.html").read_text()
    for path in (work.folder / "results/cells").glob("*/metrics.json"):
        metrics = json.loads(path.read_text())
        for side in metrics.get("sides", [metrics]):
            environment = side["environment"]
            name = "horovod" if environment["image"].startswith("horovod") else "torch"
            image = recipes.image(name, "current", SETTINGS)
            assert environment["image"] == image.label
            assert environment["image_digest"] == image.facts["sha256"]
            assert environment["deployment"] == "apptainer"
            assert environment["python"] == image.facts["python"]
            assert environment["lock_mismatch"] == []
            assert environment["machine"]["os"] == machine.operating_system()
            assert environment["image_digest"] in html
    files = [path for part in ("results", "reports") for path in (work.folder / part).rglob("*")]
    assert {path.lstat().st_uid for path in files} == {os.getuid()}
    assert work.jobs("--sdm", "apptainer") == {}


@contextlib.contextmanager
def edited(path, change):
    """Change a file within the context; restore it and its times afterwards."""
    content, status = path.read_bytes(), path.stat()
    path.write_text(change(path.read_text()))
    try:
        yield
    finally:
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_changed_recipe_runs_its_cells_again_and_no_other(finished):
    work, _ = finished
    folder, after = work.folder / "containers", {"table": 1, "report": 1}
    more = "\n%runscript\n    exec true\n"
    with edited(folder / "horovod.def", lambda text: text + more):
        assert work.jobs() == {"image": 1, "train": 2, "certificate": 1, **after}  # and a pair
        assert "image horovod changed" in work.parbench("why", "swin.horovod").stdout
    with edited(folder / "report.def", lambda text: text + more):
        assert work.jobs() == {"image": 1, **after}


def test_the_command_of_a_cell_enters_its_image(finished):
    work, _ = finished
    line = work.parbench("command", "swin.eager").stdout.strip()
    path = next(work.folder.glob("results/cells/swin.eager.*/metrics.json"))
    with edited(path, lambda text: text):
        done = subprocess.run(["sh", "-c", line], cwd=work.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert json.loads(path.read_text())["environment"]["image"]
    log = path.with_name("log.txt").read_text()
    assert recipes.image("torch", "current", SETTINGS).label in log.splitlines()[0]


@pytest.mark.whole
def test_a_study_runs_with_a_sources_own_versions(tmp_path):
    """Those of the stack `paper`, from training by three strategies to the PDF."""
    for name in ("torch", "horovod", "report"):
        ready(name, "paper")
    work = Workspace(tmp_path / "work", "apptainer")
    work.edit("config.yaml", "stack: current", "stack: paper")
    work.edit("config.yaml", "unpack: true", "unpack: false")
    variants = """
eager: {strategy: eager, hardware: cpu1}
gpipe: {strategy: gpipe, options: {balance: [2], chunks: 2}, hardware: cpu1, baseline: eager}
horovod: {strategy: horovod, hardware: cpu2, baseline: eager}
"""
    study = small_study("With the versions of then", "simple_cnn: {}", variants)
    (work.folder / "studies/then.yaml").write_text(study)
    (work.folder / "mine.yaml").write_text("studies: [then]\navailable: {cpu: 2}\n")
    work.snakemake("reports/final.html", "reports/final.pdf", "--configfile", "mine.yaml")
    found = [read_json(path) for path in (work.folder / "results/cells").glob("*/metrics.json")]
    assert {run["cell"]["strategy"]["name"] for run in found} == {"eager", "gpipe", "horovod"}
    for run in found:
        assert run["status"] == "ok"
        assert run["environment"]["stack"] == "paper"
        assert run["environment"]["packages"]["torch"].partition("+")[0] == "2.1.2"
        assert run["environment"]["lock_mismatch"] == []
    assert "With the versions of then" in (work.folder / "reports/final.html").read_text()
    assert (work.folder / "reports/final.pdf").read_bytes().startswith(b"%PDF")
