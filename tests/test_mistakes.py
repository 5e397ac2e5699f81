"""What a user reads after a mistake, as tests/expected/mistakes.yaml lists it.

Each is made as a user makes it and must be answered by one clear error before anything runs. After
a change on purpose, rewrite the messages, all of them or one, and read the difference:

    REWRITE_EXPECTED=1 python -m pytest tests/test_mistakes.py
    T=tests/test_mistakes.py::test_a_mistake_is_answered_by_its_message
    REWRITE_EXPECTED=1 python -m pytest "$T[an unknown stack]"
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from workspace import ROOT, Workspace

CATALOGUE = Path(__file__).parent / "expected" / "mistakes.yaml"  # of the checkout
MISTAKES = yaml.safe_load((ROOT / "tests/expected/mistakes.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    """Return a work folder whose quickstart is the study that most mistakes are made in."""
    work = Workspace(tmp_path_factory.mktemp("mistakes") / "work")
    shutil.copy(
        ROOT / "tests/expected/five-strategies.yaml", work.folder / "studies/quickstart.yaml"
    )
    return work


@contextmanager
def made(work: Workspace, mistake: Mapping[str, Any]) -> Iterator[None]:
    """Change the files of ``work`` that ``mistake`` names, and change them back."""
    changes = {work.folder / name: v for name, v in mistake.items() if name not in ("run", "says")}
    before = {path: path.read_text() for path in changes if path.exists()}
    try:
        for path, change in changes.items():
            if isinstance(change, str):
                path.write_text(change)
            else:
                for old, new in change.items():
                    work.edit(str(path.relative_to(work.folder)), old, new)
        yield
    finally:
        for path in changes:
            path.write_text(before[path]) if path in before else path.unlink(missing_ok=True)


def message(work: Workspace, command: str) -> str:
    """Run ``command`` in ``work``, which must fail, and return the error that it prints."""
    run = work.run if "snakemake" in command else work.parbench
    done = run(*command.split(), check=False)
    assert done.returncode != 0, done.stdout
    if "snakemake" in command:  # which prints more than our message
        text = re.search(r"error: .*", done.stdout + done.stderr)[0]
    else:
        assert "Traceback" not in done.stderr
        text = done.stderr.rstrip()
    # The location of the code may change.
    return text.replace(f"{work.folder}/", "").replace("scripts/parbench/", "scripts/")


def rewrite(name: str, says: str) -> None:
    """Write what the mistake ``name`` is answered by into the catalogue, whoever writes beside."""
    said = "  says: |\n" + textwrap.indent(says, "    ") + "\n"
    pattern = rf"(?m)^({re.escape(name)}:\n(?:  (?!says).*\n)+)(?:  says: \|\n(?:    .*\n)+)?"
    with CATALOGUE.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = re.sub(pattern, lambda found: found[1] + said, file.read())
        file.seek(0)
        file.truncate()
        file.write(text)


@pytest.mark.scattered
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_by_its_message(work, name):
    mistake = MISTAKES[name]
    with made(work, mistake):
        says = message(work, mistake.get("run", "cells"))
    if "REWRITE_EXPECTED" in os.environ:
        rewrite(name, says)
    else:
        assert says == mistake.get("says", "").rstrip()


@pytest.mark.scattered
def test_a_developer_sees_where_a_message_is_made(work):
    done = work.parbench("cells", "--study", "quikstart", check=False, PARBENCH_TRACEBACK="1")
    before, _, says = done.stderr.rpartition("\nerror: ")
    assert "Traceback" in before
    assert "parbench/plan/" in before
    assert says.startswith("--study: unknown study 'quikstart'")


def test_each_message_is_listed_once():
    counts = Counter(mistake.get("says") for mistake in MISTAKES.values())
    assert [says for says, count in counts.items() if count > 1] == []


@pytest.mark.scattered
def test_a_dry_run_in_a_folder_that_it_cannot_write_to_names_it(work, tmp_path):
    copied = work.copied(tmp_path / "work")
    shutil.rmtree(copied.folder / ".snakemake", ignore_errors=True)
    (copied.folder / ".snakemake").touch()  # the tests may run as root, who may write anywhere
    done = copied.snakemake("-n", check=False)
    assert "Traceback" not in done.stdout + done.stderr
    assert "error: .snakemake: File exists; move it away" in done.stderr


@pytest.mark.scattered
@pytest.mark.parametrize("words", [("-m", "snakemake", "-n"), ("scripts/bin/parbench", "cells")])
def test_a_reader_that_has_seen_enough_ends_a_command_without_a_traceback(work, words):
    command = [work.python, *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=work.folder, text=True, **pipes) as process:
        assert process.stdout.readline()
        process.stdout.close()  # as `head -n 1` does
        assert "Traceback" not in process.stderr.read()


@pytest.mark.scattered
def test_a_study_that_is_a_link_to_nothing_is_named_as_such(work):
    path = work.folder / "studies/linked.yaml"
    path.symlink_to("elsewhere.yaml")
    try:
        says = message(work, "cells --study linked")
    finally:
        path.unlink()
    assert says.startswith("error: studies/linked.yaml: a link to elsewhere.yaml, which does not")
