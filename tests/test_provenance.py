"""A cell is stale when the meaning of code that it can reach changes, and only then."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

import provenance

SCRIPTS = provenance.SCRIPTS


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    shutil.copytree(SCRIPTS, tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(provenance, "SCRIPTS", tmp_path / "scripts")
    provenance._module.cache_clear()
    yield tmp_path / "scripts"
    provenance._module.cache_clear()


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_closure_holds_loop_strategy_and_model_only():
    code = provenance.cell_code("gpipe", "swin")
    assert {"train.py", "loader.py", "strategies/gpipe.py", "strategies/eager.py"} <= set(code)
    assert "models/swin.py" in code
    for other in ("strategies/ddp.py", "models/resnet18.py", "cells.py", "dataset.py", "launch.py"):
        assert other not in code


def test_comment_docstring_and_blank_lines_change_nothing(scripts):
    before = provenance.cell_code("gpipe", "swin")
    path = scripts / "strategies/gpipe.py"
    edit(path, '"""One process drives all devices."""', '"""Said otherwise."""  # and why')
    path.write_text(path.read_text() + "\n\n# the end\n")
    assert provenance.cell_code("gpipe", "swin") == before


def test_code_changes_its_own_cells_only(scripts):
    gpipe, ddp = provenance.cell_code("gpipe", "swin"), provenance.cell_code("ddp", "swin")
    edit(scripts / "strategies/gpipe.py", '"default": 4', '"default": 8')
    assert provenance.cell_code("gpipe", "swin") != gpipe
    assert provenance.cell_code("ddp", "swin") == ddp


def test_a_constant_none_counts(scripts):
    path = scripts / "strategies/eager.py"
    before = provenance.cell_code("eager", "swin")
    edit(path, "backend: str | None = None", "backend: str | None = 'gloo'")
    assert provenance.cell_code("eager", "swin") != before


def test_spelling_does_not_depend_on_the_python_version(tmp_path):
    """3.12 and 3.13 have syntax-tree fields that 3.11 lacks."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import provenance; "
        "print(provenance.combined(provenance.cell_code('horovod', 'swin')))"
    )
    here = provenance.combined(provenance.cell_code("horovod", "swin"))
    tried = 0
    for python in ("python3.11", "python3.12", "python3.13", "python3.14"):
        found = shutil.which(python)
        if not found:
            continue
        command = [found, "-I", "-c", program, str(SCRIPTS)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode == 0:  # a shim of a version that is not installed fails
            assert result.stdout.strip() == here, python
            tried += 1
    if not tried:
        pytest.skip("no other Python on this machine")


def test_empty_fields_are_left_out():
    tree = ast.parse("def f():\n    x = None\n    return 'a'\n")
    spelled = provenance._spell(tree)
    assert "decorator_list" not in spelled
    assert "value=None" in spelled


def test_git_state_of_no_checkout(tmp_path):
    assert provenance.git_state(tmp_path) == {"git_commit": None, "git_dirty": None}


def test_evidence_that_was_just_written_leaves_a_checkout_clean(tmp_path):
    def git(*words):
        name = ("-c", "user.name=x", "-c", "user.email=x@x")
        subprocess.run(["git", "-C", tmp_path, *name, *words], check=True, capture_output=True)

    git("init")
    scripts, evidence = tmp_path / "scripts", tmp_path / "reports/evidence"
    for folder in (scripts, evidence):
        folder.mkdir(parents=True)
    (scripts / "train.py").write_text("")
    git("add", ".")
    git("commit", "-m", "one")
    (evidence / "study.json").write_text("{}")
    assert provenance.git_state(scripts)["git_dirty"] is False
    (scripts / "new.py").write_text("")
    assert provenance.git_state(scripts)["git_dirty"] is True
