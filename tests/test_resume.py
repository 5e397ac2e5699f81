"""`make test` leaves out what has passed, until anything changes."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from conftest import ROOT

TESTS = """
import os

def test_good():
    pass

def test_bad():
    assert os.path.exists("mended.part")
"""


@pytest.fixture
def project(tmp_path):
    """A small project with this one's conftest.py."""
    (tmp_path / "tests").mkdir()
    for name in ("conftest.py", "require.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    (tmp_path / "tests" / "test_it.py").write_text(TESTS)
    (tmp_path / ".gitignore").write_text("*.part\n.pytest_cache/\n__pycache__/\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def run(project):
    command = [sys.executable, "-m", "pytest", "--resume", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_only_what_has_not_passed_is_run(project):
    status, said = run(project)
    assert status == 1
    assert "1 failed, 1 passed" in said
    status, said = run(project)
    assert status == 1
    assert "1 tests have passed since the last change" in said
    assert "1 failed, 1 deselected" in said
    (project / "mended.part").touch()
    status, said = run(project)
    assert status == 0
    assert "1 passed, 1 deselected" in said
    status, said = run(project)
    assert status == 0
    assert "2 deselected" in said


def test_any_change_runs_all_again(project):
    (project / "mended.part").touch()
    assert "2 passed" in run(project)[1]
    (project / "a new file").write_text("x")
    assert "2 passed" in run(project)[1]
    assert "2 deselected" in run(project)[1]


def test_what_was_skipped_is_not_left_out(project):
    path = project / "tests" / "test_it.py"
    path.write_text("import pytest\n\ndef test_it():\n    pytest.skip('no tool')\n")
    assert "1 skipped" in run(project)[1]
    assert "1 skipped" in run(project)[1]
