"""Where the cache is, and its locks."""

from __future__ import annotations

from pathlib import Path

import pytest

import cache
from errors import ParbenchError


def test_its_folder(monkeypatch):
    monkeypatch.setenv("PARBENCH_CACHE", "/a")
    assert cache.folder() == Path("/a")
    monkeypatch.delenv("PARBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache.folder() == Path("/b/parbench")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/c")
    assert cache.folder() == Path("/c/.cache/parbench")


def test_a_cache_that_may_not_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(ParbenchError, match="PARBENCH_CACHE"),
        cache.locked(tmp_path / "file" / "envs" / "x.lock", "it"),
    ):
        pass
