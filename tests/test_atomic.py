"""Killed at any moment, a writer leaves nothing by half, and the next one leaves nothing else."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cells
import checkpoint
import constructed
import dataset
import files
import measure
import record
import tables

# Of what Python tells of beforehand: all that programs do to files.
EVENTS = (
    "open",
    "tempfile.mkstemp",
    "os.chmod",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.truncate",
)


def killed(write: Callable[[], None], folder: Path, number: int) -> bool:
    """Run ``write`` in a copy of this process that dies before the ``number``-th thing it does to
    files in ``folder``; whether it came to that."""
    child = os.fork()
    if child == 0:
        left = number

        def look(event: str, arguments: tuple) -> None:
            nonlocal left
            if event in EVENTS and any(str(word).startswith(f"{folder}/") for word in arguments):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(look)
            write()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status != 0


def found(folder: Path) -> dict[str, bytes]:
    """What a reader sees in a folder. Locks are no results."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def visible(content: dict[str, bytes]) -> dict[str, bytes]:
    return {name: value for name, value in content.items() if not name.endswith(".part")}


def write_dataset(folder: Path, study: dict) -> None:
    dataset.prepare("digits", {"kind": "digits"}, folder / "data", folder / "digest.json")


def write_metrics(folder: Path, study: dict) -> None:
    metrics = measure.read_metrics(next(study["cells"].glob("*/metrics.json")))
    measure.write_metrics(folder / "metrics.json", metrics)


def finish(folder: Path, study: dict) -> None:
    record.finished(folder, next(study["cells"].glob("*/metrics.json")), 3.0, None)


def write_table(folder: Path, study: dict) -> None:
    words = ["--plan", study["plan"], "--cells", study["cells"]]
    words += ["--published", *cells.published_files()]
    tables.main([*map(str, words), "--out", str(folder / "table.csv")])


def write_checkpoints(folder: Path, study: dict) -> None:
    import torch

    store = checkpoint.Store(folder, {})
    store.find()
    for number in (1, 2, 3):
        store.write(number, {"weight": torch.full((9,), float(number))}, {"kept": number})


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    text, groups = constructed.usual_study(published=None), constructed.usual_groups()[:1]
    return constructed.write_study(tmp_path_factory.mktemp("study"), text, groups)


@pytest.mark.parametrize(
    "write", [write_dataset, write_metrics, finish, write_table, write_checkpoints]
)
def test_killed_anywhere_and_run_again(tmp_path, study, write):
    whole = tmp_path / "whole"
    write(whole, study)
    wanted = found(whole)
    assert wanted
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        folder.mkdir()
        if not killed(lambda folder=folder: write(folder, study), folder, number):
            assert found(folder) == wanted
            break
        if write is not write_checkpoints:  # the older ones are deleted
            assert visible(found(folder)).items() <= wanted.items()
        write(folder, study)
        assert found(folder) == wanted
    assert number > 3


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path):
    path, seen = tmp_path / "a.json", set()
    for number in itertools.count(1):
        path.write_text("old")
        if not killed(lambda: files.write_atomically(path, "new"), tmp_path, number):
            break
        seen.add(path.read_text())
    assert seen == {"old", "new"}
    assert path.read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_who_writes_is_not_disturbed(tmp_path):
    """Only what nobody works on is deleted."""
    path = tmp_path / "a.json"
    with files.atomic_path(path) as first:
        first.write_text("first")
        files.write_atomically(path, "second")
        assert first.exists()
    assert path.read_text() == "first"
    (tmp_path / ".a.json.left.part").write_text("half")
    (tmp_path / ".b.json.left.part").write_text("another's")
    files.write_atomically(path, "third")
    assert {each.name for each in tmp_path.iterdir()} == {"a.json", ".b.json.left.part"}
