"""A writer killed at any moment leaves no partial file; damaged files and text harm no reader."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import constructed
from parbench import cell as cells
from parbench import files
from parbench.data import dataset
from parbench.errors import ParbenchError
from parbench.exits import run_main
from parbench.identity import Identity
from parbench.plan import writing
from parbench.plan.expansion import Plan
from parbench.plan.yaml_file import read_yaml
from parbench.printable import log_line, printable
from parbench.training import checkpoint
from training import cell

# The audit events that Python raises before a program changes or opens files.
EVENTS = {"open", "tempfile.mkstemp", "os.chmod", "os.rename", "os.remove", "os.mkdir"}


def killed(write: Callable[[], None], folder: Path, number: int) -> bool:
    """Run ``write`` in a fork that is killed before its ``number``-th operation on files in
    ``folder``; return whether it was killed."""
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
    """Return all files but hidden ones, which killed writers leave behind."""
    return {path.name: path.read_bytes() for path in folder.rglob("[!.]*") if path.is_file()}


def write_dataset(folder: Path) -> None:
    spec = {"kind": "synthetic", "classes": 2, "image_size": 8, "seed": 0}
    spec |= {"train_samples": 4, "test_samples": 4}
    dataset.prepare("mine", spec, folder / "data", folder / "digest.json")


def write_checkpoints(folder: Path) -> None:
    store = checkpoint.Store(folder, Identity(cell(), {}, {}, {}, {}))
    store.find()
    for number in (1, 2, 3):
        store.write(number, {"weight": torch.full((9,), float(number))}, {"kept": number})


@pytest.mark.parametrize("write", [write_dataset, write_checkpoints])
def test_killed_anywhere_and_run_again(tmp_path, write):
    write(tmp_path / "whole")
    wanted = found(tmp_path / "whole")
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        folder.mkdir()
        was_killed = killed(lambda folder=folder: write(folder), folder, number)
        if write is write_dataset:  # not checkpoints: older ones are deleted
            assert found(folder).items() <= wanted.items()
        write(folder)
        assert found(folder) == wanted
        if not was_killed:
            break
    assert number > 3


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path):
    path, seen = tmp_path / "a.json", set()
    for number in itertools.count(1):
        path.write_text("old")
        if not killed(lambda: files.write_atomically(path, "new"), tmp_path, number):
            break
        seen.add(path.read_text())
    assert seen == {"old", "new"}
    with files.atomic_path(path) as first:  # two writers do not disturb each other
        first.write_text("first")
        files.write_atomically(path, "second")
    assert path.read_text() == "first"
    assert [each.name for each in tmp_path.glob("[!.]*")] == ["a.json"]


@pytest.mark.parametrize("content", ["[]", "{}", "null", '{"sha256": 1}', '"sha256 listing"'])
def test_a_record_of_another_shape_is_named(tmp_path, content):
    path = tmp_path / "record.json"
    path.write_text(content)
    with pytest.raises(ParbenchError, match=r"record.json: not what a run writes there .* delete"):
        files.read_record(path, "sha256", "listing")


def test_a_folder_where_a_file_is_to_be_written_is_named(tmp_path):
    with pytest.raises(ParbenchError, match="is a folder, but a file is written there; move it"):
        files.write_atomically(tmp_path, "new")


def test_the_target_of_a_broken_link_is_named(tmp_path):
    link = tmp_path / "link.yaml"
    link.symlink_to("/nowhere")
    for read in (read_yaml, files.read_json):
        with pytest.raises(ParbenchError, match="link.yaml: a link to /nowhere, which does not"):
            read(link)


@pytest.mark.parametrize("kind", ["text", "tensors"])
def test_a_file_that_the_disk_does_not_take_is_named(tmp_path, kind):
    def write() -> None:
        with files.atomic_path(tmp_path / "large") as temporary:
            if kind == "text":
                temporary.write_bytes(bytes(10**6))
            else:  # safetensors has errors of its own
                save_file({"a": torch.zeros(10**6)}, temporary)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.filename == str(tmp_path / "large")
    assert list(tmp_path.iterdir()) == []


@dataclass
class Journal:
    """What was written to disk, and what was renamed, in order: ("sync" or "rename", path)."""

    entries: list[tuple[str, Path]]

    def renamed(self) -> list[Path]:
        """Check that each rename is between a sync of the content and one of the folder.

        Returns the renamed files and folders under their new names.
        """
        places = [n for n, (what, _) in enumerate(self.entries) if what == "rename"]
        for place in places:
            assert self.entries[place - 1][0] == "sync of what is renamed", self.entries
            assert self.entries[place + 1] == ("sync", self.entries[place][1].parent)
        return [self.entries[place][1] for place in places]


@pytest.fixture
def journal(monkeypatch) -> Journal:
    """Record calls of fsync, of `sync` and of rename."""
    entries: list[tuple[str, Path]] = []
    synced, renamed, program = os.fsync, os.replace, subprocess.run

    def fsync(descriptor):
        entries.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        synced(descriptor)

    def replace(source, target):
        if entries and entries[-1] == ("sync", Path(source).absolute()):
            entries[-1] = ("sync of what is renamed", Path(source))
        entries.append(("rename", Path(target).absolute()))
        renamed(source, target)

    def run(command, **options):
        if command[0] == "sync":
            entries.append(("sync", Path(command[-1])))
        return program(command, **options)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(subprocess, "run", run)
    return Journal(entries)


def test_what_is_renamed_is_on_the_disk_before_and_its_name_after(journal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files.write_json(tmp_path / "a" / "b" / "c.json", 1)
    assert journal.renamed() == [tmp_path / "a/b/c.json"]
    # The entries of new folders, too.
    assert [path for what, path in journal.entries[:2]] == [tmp_path, tmp_path / "a"]
    journal.entries.clear()
    write_checkpoints(tmp_path)
    numbers = [int(path.name.split(".")[0]) for path in journal.renamed()]
    assert numbers == [1, 2, 3]
    journal.entries.clear()
    (tmp_path / "work").mkdir()
    files.rename_durably(tmp_path / "work", tmp_path / "folder")
    assert journal.renamed() == [tmp_path / "folder"]
    journal.entries.clear()
    cell = constructed.make_cell("a", "simple_cnn", "eager", constructed.make_hardware())
    plan = Plan(cells={"a": cells.Cell.of(cell)})
    writing.write(plan)
    writing.write_progress(["a"])
    names = {path.name for path in journal.renamed()}
    assert {"cell.json", "progress.json"} <= names
    journal.entries.clear()
    writing.write(plan)
    assert journal.entries == []  # nothing changed


def test_a_disk_that_cannot_sync_folders_is_used_and_one_that_fails_is_not(monkeypatch, tmp_path):
    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def failing(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    files.write_atomically(tmp_path / "new" / "a", "old")
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output error"):
        files.write_atomically(tmp_path / "new" / "a", "new")
    assert found(tmp_path / "new") == {"a": b"old"}


JSON, YAML = files.read_json, read_yaml
LAUGHS = b"a: &a [x]\n" + b"".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n".encode() for a, b in itertools.pairwise("abcdef")
)


@pytest.mark.parametrize(
    ("read", "content", "words", "fix"),
    [
        (JSON, None, ": is a folder", "name a file, or move it away"),
        (JSON, b"\xff\xfe{}", ": the file is in UTF-16", "save it as UTF-8"),
        (JSON, b"[" * 100_000, ": not valid JSON", "delete it"),
        (JSON, b"", ", line 1: not valid JSON: it is empty", "delete it"),
        (JSON, b'{"a":\r\n1,}', ", line 2: not valid JSON", "delete it"),
        (JSON, b"[1e999]", ": not valid JSON: 1e999 is not a finite number", "delete it"),
        (JSON, b"[NaN]", ": not valid JSON: NaN is not a finite number", "delete it"),
        (JSON, b'["\\ud800"]', ": not valid JSON", "delete it"),
        (YAML, None, ": is a folder", "name a file, or move it away"),
        (YAML, b"\xff\xfea\0", ": the file is in UTF-16", "save it as UTF-8"),
        (YAML, b"a: 1\r\nb: \xe9\r\n", ", line 2: byte 0xe9 is not UTF-8 (in Latin-1: é)", "save"),
        (YAML, b"a: 1\rb: \0\r", ", line 2: a NUL character", "save it as UTF-8"),
        (YAML, b'a: "\\0"', ", line 1: a: the value holds a NUL character", "remove it"),
        (
            YAML,
            b"a:\n  b: &b [1, *b]",
            ", line 2: a.b.1: the alias *b refers to itself",
            "remove it",
        ),
        (YAML, LAUGHS, ", line 6: f.6: aliases unfold to more than 100,000 values", "write fewer"),
        (YAML, b"[" * 100_000, ", line 1: 0.0.0: nested more than 50 levels deep", "write fewer"),
        (
            YAML,
            b"a:\n- [1\nb: 2\n",
            ", line 3: not valid YAML: ",
            "line 2; correct it",
        ),
        (YAML, b"a: '1\n\n", ", line 1: not valid YAML: found unexpected end", "correct it"),
        (YAML, b"a:\n\tb: 1", ", line 2: not valid YAML: ", "it contains a tab; indent"),
        (YAML, b"a: @b", ", line 1: not valid YAML: ", "put text that begins with @ in quotes"),
        (YAML, b"a: b: c", ", line 1: not valid YAML: ", "a colon and a blank in quotes"),
        (YAML, b"\xc2\xa0a: 1", ", line 1: the key '\\xa0a' holds an invisible", "remove it"),
        (YAML, b"a: *b", ", line 1: a: alias *b has no anchor &b above it", "correct it"),
        (YAML, b"a: 1\n---\nb: 2", ", line 2: a second YAML document begins here", "keep one"),
        (YAML, b"16: 1", ", line 1: the key 16 is not text", "quotes: '16'"),
        (YAML, b"a: 1e999", ", line 1: a: 1e999 is not a usable number", "give a finite one"),
        (YAML, b"a: [0123]", ", line 1: a.0: YAML reads 0123 as 83", "'0123' in quotes"),
        (YAML, b"a: 1_000", ", line 1: a: YAML reads 1_000 as 1000", "the number in plain digits"),
        (YAML, b"a: 0x10", ", line 1: a: YAML reads 0x10 as 16", "the number in plain digits"),
        (YAML, b"a: 1:30", ", line 1: a: YAML reads 1:30 as 90", "in the unit of this key"),
        (YAML, b"a: on", ", line 1: a: YAML reads on as true", "write true, or 'on' in quotes"),
        (YAML, b"a: 2024-13-01", ", line 1: a: YAML reads 2024-13-01 as a date", "in quotes"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, read, content, words, fix):
    path = tmp_path / "a file"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ParbenchError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}{words}")
    assert fix in str(caught.value)


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_file_reads_the_same_whatever_editor_saved_it(tmp_path, mark, end):
    path = tmp_path / "a file"
    path.write_bytes(f'{mark}{{{end}"a": ["é", 1e-3]{end}}}{end}'.encode())
    assert files.read_json(path) == read_yaml(path) == {"a": ["é", 0.001]}
    path.write_bytes(f"{mark}a: |{end}  é{end}b: 5E4{end}".encode())
    assert read_yaml(path) == {"a": "é\n", "b": 50_000.0}


def test_parts_of_a_yaml_file_can_be_shared(tmp_path):
    path = tmp_path / "a file"
    path.write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: [{y: 4}, *a]}\nd: *a\n")
    a = {"x": 1, "y": 2}
    assert read_yaml(path) == {"a": a, "b": {"x": 1, "y": 3}, "c": {"x": 1, "y": 4}, "d": a}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("é, 模型, Ω ±\n12\N{NO-BREAK SPACE}GB\t", "é, 模型, Ω ±\n12\N{NO-BREAK SPACE}GB\t"),
        ("می\N{ZERO WIDTH NON-JOINER}خواهم", "می\N{ZERO WIDTH NON-JOINER}خواهم"),
        ("\x1b[1;31mred\x1b[0m \x1b[2J\x1b[?25l", "red "),
        ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "alink"),
        ("a\x00\x08\x7f\x9b2Jb\r\x1bc", "a����2Jb��c"),
        ("\u202egnp.exe \u2066 \u200b \ufeff \ud800", "�gnp.exe � � � �"),
    ],
)
def test_what_others_wrote_does_nothing_to_a_terminal(capsys, text, shown):
    assert printable({text: [text, 1, None]}) == {shown: [shown, 1, None]}

    def main():
        raise ParbenchError(text)

    with pytest.raises(SystemExit) as ended:
        run_main(main)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {shown}\n"


def test_a_log_line_is_what_a_terminal_would_show_in_the_end():
    assert log_line("10 %\r90 %\r\n") == "90 %"
    assert log_line("\x1b[32ma\x1b[0m b  ") == "a b"
    assert log_line("x" * 1000).endswith("…")
