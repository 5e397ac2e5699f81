"""A cell is stale when the meaning of code that it can reach changes, and only then."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from parbench.measure import provenance

SCRIPTS = provenance.SCRIPTS
# Modules of parbench.
REACHED = """
    cache cell data data.disk_input data.loader data.pil_input data.pretrained data.saved_weights
    data.stored_images data.text_input data.tokens errors files git identity interpreter machine
    measure measure.clocks measure.cores measure.environment measure.flops measure.meters
    measure.metrics_json measure.profiling measure.profiling.none measure.provenance measure.scores
    measure.steering models models._cuts models._outline models._resnet models.resnet18 outside
    packages printable probe strategies strategies._base strategies._stages strategies.eager
    training training.batch_norm training.checkpoint training.companions training.compiling
    training.endings training.evaluation training.infer training.launched training.learning_rate
    training.loop training.optimizers training.progress training.run training.set_up
    training.snapshot training.train variables
""".split()


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


def test_what_an_eager_cell_reaches():
    """A new import in one of these modules makes every such cell stale."""
    found = provenance.cell_code("eager", "resnet18")
    assert list(found) == ["parbench", *(f"parbench.{name}" for name in REACHED)]


def test_relative_imports_and_packages_count(scripts):
    package = scripts / "parbench/models"
    edit(package / "swin.py", "from __future__ import annotations", "from . import layer")
    (package / "layer.py").write_text("from ..errors import ParbenchError\n")
    code = provenance.cell_code("eager", "swin")
    assert {"parbench.models", "parbench.models.layer", "parbench.errors"} <= set(code)


def test_an_import_that_cannot_be_followed_is_an_error(scripts):
    with open(scripts / "parbench/models/swin.py", "a") as file:
        file.write("from parbench.models.gone import something\n")
    with pytest.raises(LookupError, match="there is no module parbench.models.gone"):
        provenance.cell_code("eager", "swin")


def test_spelling_does_not_depend_on_the_python_version(tmp_path):
    """3.12 and 3.13 have syntax-tree fields that 3.11 lacks."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from parbench.measure import provenance; "
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


def test_variables_and_a_repository_around_it_change_no_recorded_commit(tmp_path, monkeypatch):
    def git(folder, *words):
        name = ("-c", "user.name=x", "-c", "user.email=x@x")
        done = subprocess.run(["git", "-C", folder, *name, *words], check=True, stdout=-1)
        return done.stdout.decode().strip()

    inner = tmp_path / "home" / "archive"
    (inner / "scripts").mkdir(parents=True)
    (inner / "scripts" / "train.py").write_text("")
    git(tmp_path / "home", "init", "--quiet")
    git(tmp_path / "home", "commit", "--quiet", "--allow-empty", "--message", "a home under git")
    nothing = {"git_commit": None, "git_dirty": None}
    assert provenance.git_state(inner / "scripts") == nothing  # an unpacked archive
    git(inner, "init", "--quiet")
    git(inner, "add", ".")
    git(inner, "commit", "--quiet", "--message", "one")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "home" / ".git"))  # as in a hook
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere")
    monkeypatch.setenv("GIT_LITERAL_PATHSPECS", "1")
    found = provenance.git_state(inner / "scripts")
    monkeypatch.undo()
    assert found == {"git_commit": git(inner, "rev-parse", "HEAD"), "git_dirty": False}


def test_what_needs_a_commit_says_so(tmp_path, monkeypatch):
    from parbench import git
    from parbench.errors import ParbenchError

    with pytest.raises(ParbenchError, match="is not a git clone .an archive .*: use `git clone`"):
        git.run(tmp_path, "status")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        ParbenchError, match="git is needed and cannot be started .*; install the package git"
    ):
        git.run(tmp_path, "status")
