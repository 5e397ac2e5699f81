"""Cells that train with a Python of the user's own (`deployment: {python: ...}`)."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from parbench import interpreter
from parbench.errors import ParbenchError
from workspace import ROOT, Workspace, small_study

VARIANTS = """
eager: {strategy: eager, hardware: cpu1}
ddp: {strategy: ddp, hardware: cpu2, baseline: eager}
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> str:
    """Make a Python without packages; return its path."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return str(folder / "bin" / "python")


@pytest.fixture
def mine(tmp_path) -> Path:
    """Make a Python with the packages of REQUIRED, what these require, and one more; return its
    folder."""
    folder = tmp_path / "my python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    place = own_packages(folder)
    for name in with_requirements(interpreter.REQUIRED):
        for top in {file.parts[0] for file in metadata.files(name)} - {".."}:
            if not (place / top).exists():
                (place / top).symlink_to(Path(sysconfig.get_path("purelib"), top))
    add_package(folder, "1.0")
    return folder


def with_requirements(names: Iterable[str]) -> set[str]:
    """Return the names of these packages and of all that they require here."""
    found, left = set(), list(names)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            lines = map(Requirement, metadata.requires(name) or ())
            left += [
                line.name
                for line in lines
                if not line.marker or line.marker.evaluate({"extra": ""})
            ]
    return found


def own_packages(folder: Path) -> Path:
    (place,) = folder.glob("lib/python*/site-packages")
    return place


def add_package(folder: Path, version: str) -> None:
    """Install a package without code, as installers record it."""
    record = own_packages(folder) / "mine.dist-info"
    record.mkdir(exist_ok=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: mine\nVersion: {version}\n")
    (record / "RECORD").write_text("mine.dist-info/METADATA,,\n")


@pytest.mark.whole
def test_cells_train_with_it_and_again_when_its_packages_change(mine, tmp_path):
    work = Workspace(tmp_path / "work")
    study = small_study("Mine", "simple_cnn: {}", VARIANTS)
    (work.folder / "studies" / "mine.yaml").write_text(study)
    python = str(mine / "bin" / "python")
    (work.folder / "mine.yaml").write_text(f"deployment: {{python: '{python}'}}\nstudies: [mine]\n")
    words = ("--configfile", "mine.yaml")
    tables = ("results/tables/mine.csv", *words)
    # A variable of a site and an environment entered do not lead it to other packages.
    foreign = {"PYTHONPATH": str(tmp_path), "VIRTUAL_ENV": sys.prefix}
    done = work.snakemake(*tables, **foreign)
    assert f"cells run with python {python} (torch " in done.stdout + done.stderr

    results = [json.loads(path.read_text()) for path in work.folder.glob("results/cells/*/m*.json")]
    assert {each["status"] for each in results} == {"ok"}
    for environment in (each["environment"] for each in results):
        assert environment["interpreter"]["path"] == python
        assert environment["deployment"] == interpreter.ask(python).label
        assert environment["interpreter"]["records"].startswith(environment["deployment"][7:])
        assert environment["stack"].startswith(f"python {python} (torch ")
    (certificate,) = work.folder.glob("results/certificates/*.json")
    assert certificate.stem == interpreter.ask(python).label
    work.snakemake("reports/final.html", *words)
    page = (work.folder / "reports" / "final.html").read_text()
    assert "not certified" not in page
    assert f"python {python} (torch " in page
    assert "stack current" not in page
    assert work.jobs(*tables) == {}

    add_package(mine, "2.0")
    assert work.jobs(*tables)["train"] == len(results)


def test_what_a_strategy_lacks_there_is_said_by_the_plan(mine, tmp_path):
    work = Workspace(tmp_path / "work")
    variants = "eager: {strategy: eager, hardware: cpu1}\n"
    variants += "gpipe: {strategy: gpipe, options: {balance: [2]}, hardware: cpu1}"
    study = small_study("Mine", "simple_cnn: {}", variants)
    (work.folder / "studies" / "mine.yaml").write_text(study)
    python = mine / "bin" / "python"
    (work.folder / "mine.yaml").write_text(f"deployment: {{python: {python}}}\nstudies: [mine]\n")
    listed = work.parbench("cells", "--configfile", "mine.yaml").stdout
    (line,) = (line for line in listed.splitlines() if ".gpipe." in line)
    assert "has no torchgpipe: " in line
    assert "-m pip install torchgpipe" in line
    assert "1 missing, 1 not run" in listed


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist; type `which python`"),
        ("#!/bin/sh\necho hello\n", "is not a working Python: .* it printed: hello"),
        ("#!/bin/sh\nexit 3\n", "is not a working Python: .* it printed: nothing"),
        ('#!/bin/sh\necho \'{"version": "3.8.1"}\'\n', "is Python 3.8.1, but cells need 3.11"),
        ("#!/no/such/program\n", "cannot be started: "),
    ],
)
def test_what_is_no_python_for_cells_is_said_in_a_sentence(tmp_path, content, words):
    path = tmp_path / "python"
    if content is not None:
        path.write_text(content)
        path.chmod(0o755)
    with pytest.raises(ParbenchError, match=words) as caught:
        interpreter.required(str(path))
    assert str(caught.value).startswith(f"`deployment: {{python: ...}}`: {path} ")
    assert "\n" not in str(caught.value)


def test_a_folder_and_a_file_without_permission_are_no_python(tmp_path):
    with pytest.raises(ParbenchError, match="is a folder; name the program in it"):
        interpreter.required(str(tmp_path))
    (tmp_path / "python").touch()
    with pytest.raises(ParbenchError, match="is not executable"):
        interpreter.required(str(tmp_path / "python"))


def test_packages_that_every_cell_needs_are_named_with_the_command(bare, tmp_path):
    work = Workspace(tmp_path)
    done = work.snakemake("-n", "--config", f"deployment={{python: {bare}}}", check=False)
    assert done.returncode == 2
    said = done.stdout + done.stderr
    assert f"{bare} (`deployment: {{python: ...}}`) has no numpy and no safetensors" in said
    assert f"{bare} -m pip install numpy safetensors torch torchvision" in said
    assert "Traceback" not in said


def test_a_python_that_the_system_keeps_for_itself_is_not_to_be_installed_into(tmp_path):
    """Debian's, for example."""
    system = tmp_path / "python"
    found = {"version": "3.11.2", "modules": [], "packages": {}, "records": "0" * 64}
    # `-c` is the question whether the system keeps it; anything else is what it has.
    system.write_text(f"#!/bin/sh\n[ \"$1\" = -c ] || echo '{json.dumps(found)}'\n")
    system.chmod(0o755)
    made = f"{system} -m venv --system-site-packages cells; cells/bin/python -m pip install"
    with pytest.raises(ParbenchError, match=f"keeps it for itself: {made} numpy .*; and name that"):
        interpreter.required(str(system))


def test_no_other_python_makes_its_certificate(tmp_path):
    words = [
        ROOT / "scripts/bin/parbench",
        "certify",
        "--place",
        "python-0123456789ab",
        "--out",
        "c.json",
    ]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"--place python-0123456789ab: {sys.executable} is python-" in done.stderr
    assert "run this with the Python of `deployment: {python: ...}`" in done.stderr
    assert not (tmp_path / "c.json").exists()
