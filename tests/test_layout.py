"""Limits that the linters do not check: lines per file and function, re-exports."""

from __future__ import annotations

import ast

import pytest

from workspace import ROOT

FILES = sorted((ROOT / "scripts").rglob("*.py"))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_over_500_lines_and_no_function_over_60(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 500
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, FUNCTIONS) and node.end_lineno - node.lineno >= 60
    ]
    assert not long


def test_packages_hand_on_nothing_of_others():
    for path in ROOT.glob("scripts/**/__init__.py"):
        tree = ast.parse(path.read_text())
        imported = {
            alias.asname or alias.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module.startswith("parbench")
            for alias in node.names
        }
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert imported <= used, path
