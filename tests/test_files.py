"""Files that cannot be read end in one sentence that names them."""

from __future__ import annotations

import pytest

import files
from errors import ParbenchError


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read (Is a directory)"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_what_cannot_be_read_names_the_file(tmp_path, content, words):
    path = tmp_path / "metrics.json"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ParbenchError) as caught:
        files.read_json(path)
    assert str(caught.value).startswith(f"{path}: {words}")
    assert "delete it" in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ParbenchError, match=r"none.json: no such file"):
        files.read_json(tmp_path / "none.json")
